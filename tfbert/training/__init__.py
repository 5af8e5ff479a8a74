"""What training recipes share: settings, refusals, stages, validation, what is kept for a frozen encoder."""
