"""What pages share: the shell, the card around a chart, finding cards, legends, span details."""
