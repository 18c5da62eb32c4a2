from contextlib import contextmanager

MUTANTS = {}


@contextmanager
def applied(name):
    yield
