"""A local web page on which an exported model can be tried."""
