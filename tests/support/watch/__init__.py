"""What tests of the watch share: processes that record on command, and jobs made by hand."""
