"""`python -m pool_party`: runs programs that know nothing of pool_party with their pools replaced by ours."""
