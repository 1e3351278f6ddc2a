"""Pictures of samples: which ones, what each field is drawn as, and the sheet they stand on."""
