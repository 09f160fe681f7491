"""What limits a trace: ranks that are missing, hang, failed or lost events."""
