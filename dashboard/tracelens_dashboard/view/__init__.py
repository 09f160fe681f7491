"""What is looked at: the view in the address bar, links to views, what the timeline shows of one."""
