"""A file of orders, created one and all: read, checked, sent, and told of line by line.

The way of a file: `steady` sees to it that both passes read the same bytes, `lines` numbers them,
`csv_rows` and `json_lines` make commands of them, `checking` is the first pass, `run` the second;
`outcome_file` and `tally` say what became of it.
"""
