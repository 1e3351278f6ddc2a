"""The bytes of a frame and the arrays they hold: names and configs of codecs, stages, and compiled loops."""
