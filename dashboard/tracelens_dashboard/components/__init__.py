"""What pages share: the card around a chart, finding cards, and the parts of the timeline."""
