"""What goes wrong with the test cluster itself."""


class TestbedError(Exception):
    """The test cluster could not be built, started or used; the message says why and what to do."""

    __test__ = False  # pytest, this is no test class


class Unfit(TestbedError):
    """This machine cannot run a tier; the message says what is missing and how to get it."""
