"""Which facts that differ are told, in what order, and how many are not."""

from benchsuite.results.compare.environments import told_facts


def test_the_most_telling_first_and_how_many_more():
    names = ["host", "commit", "cores", "lustre_client", "python", "os", "data.mount", "devices.driver", "benchsuite"]
    found = told_facts([(name, "a -> b") for name in names])
    first = ["cores", "data.mount", "devices.driver", "lustre_client", "os", "benchsuite"]
    assert found == [*(f"{name} a -> b" for name in first), "and 3 more"]


def test_libraries_are_one():
    found = [("libraries.numpy", "1 -> 2"), ("commit", "a -> b"), ("libraries.webdataset", "3 -> 4")]
    assert told_facts(found) == ["commit a -> b", "libraries.numpy 1 -> 2 and webdataset 3 -> 4"]


def test_one_fact_that_changed_twice_is_told_twice():
    assert told_facts([("os", "a -> b"), ("os", "a -> c")]) == ["os a -> b", "os a -> c"]
