"""The demo inputs, each made from data that an installed package ships; nothing is downloaded."""
