"""What calls and messages took on the wire, what they cost by bytes, and whom they waited for."""
