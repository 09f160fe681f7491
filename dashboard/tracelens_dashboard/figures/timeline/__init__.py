"""The timeline: what one picture stands on, the plot, and what is drawn over it."""
