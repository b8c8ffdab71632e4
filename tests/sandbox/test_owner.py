"""Owners are told apart from their successors."""

import dataclasses
import os
import subprocess

import pytest

from ale_jax.sandbox.cgroups import Owner


def test_this_process_is_here_and_lives():
    me = Owner.current()
    assert me.pid == os.getpid() and me.is_here() and not me.is_dead()
    assert Owner.parse(str(me)) == me


def test_a_later_process_with_the_same_number_is_another():
    me = Owner.current()
    assert dataclasses.replace(me, start=me.start - 1).is_dead()


@pytest.mark.heavy
def test_a_process_that_ended_is_dead():
    child = subprocess.Popen(["true"])
    child.wait()
    assert dataclasses.replace(Owner.current(), pid=child.pid).is_dead()


def test_another_boot_and_another_namespace_are_elsewhere():
    me = Owner.current()
    assert not dataclasses.replace(me, boot="x").is_here()
    assert not dataclasses.replace(me, namespace=1).is_here()


@pytest.mark.parametrize("text", ["", "a.b", "boot.x.1.2", "a.1.2.3.4"])
def test_nonsense_is_no_owner(text):
    with pytest.raises(ValueError):
        Owner.parse(text)
