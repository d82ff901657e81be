"""Whole studies: a cell from plan to stored scores, matrices of cells, and the audits over them."""
