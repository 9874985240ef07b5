"""A pytest plugin that runs joblib's tests with its own backends, which have become ours."""

import os

import pool_party

pool_party.patch(kind=os.environ["POOL_PARTY_KIND"])
