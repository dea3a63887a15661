"""SQLite transactions, and atomic writes of files by their ioctls."""

import ctypes
import errno
import fcntl
import os
import sqlite3
import struct
import sys

START, COMMIT, ABORT, FEATURES = 0xF501, 0xF502, 0xF505, 0x8004F50C
PAGE = 4096
ROWS = 5


def connect(path):
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    db.execute("PRAGMA journal_mode=DELETE")
    db.execute("PRAGMA synchronous=FULL")
    return db


def make(path):
    """Makes a table whose rows have a page each, and one value in all of them."""
    db = connect(path)
    db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, value, pad)")
    db.execute("BEGIN")
    for row in range(ROWS):
        db.execute("INSERT INTO t VALUES(?, 0, randomblob(3000))", (row,))
    db.execute("COMMIT")


def count(path, first, number):
    """Changes the value of all rows in each of several transactions."""
    db = connect(path)
    for value in range(int(first), int(first) + int(number)):
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE t SET value = ?, pad = randomblob(3000)", (value,))
        db.execute("COMMIT")
        print(value, flush=True)


def check(path):
    """Prints the result of a check, and the smallest and the largest value."""
    db = connect(path)
    result = db.execute("PRAGMA integrity_check").fetchone()[0]
    print(result, *db.execute("SELECT min(value), max(value) FROM t").fetchone())


def full(path):
    """Changes all rows where that does not fit the store; prints the error."""
    db = connect(path)
    try:
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE t SET value = -1, pad = randomblob(60000)")
        db.execute("COMMIT")
        print("committed")
    except sqlite3.OperationalError as error:
        print(error)


def allocate(path, length):
    """Allocates space for a file, which keeps its size."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDWR)
    if libc.fallocate(descriptor, 1, ctypes.c_long(0), ctypes.c_long(int(length))):
        raise OSError(ctypes.get_errno(), "fallocate")


def large(path, mebibytes):
    """Inserts that much in one transaction."""
    db = connect(path)
    # A transaction that does not fit the page cache has a journal in any case.
    db.execute("PRAGMA cache_size=-100000")
    db.execute("BEGIN IMMEDIATE")
    for _ in range(int(mebibytes)):
        db.execute("INSERT INTO t SELECT max(id) + 1, max(value), randomblob(1048576) FROM t")
    db.execute("COMMIT")


def attempt(path):
    """Prints the features and the result of a start, then of an abort."""
    descriptor = os.open(path, os.O_RDONLY)
    features = bytearray(4)
    for command, argument in ((FEATURES, features), (START, 0), (ABORT, 0)):
        try:
            fcntl.ioctl(descriptor, command, argument)
            print(struct.unpack("I", features)[0] if command == FEATURES else "ok")
        except OSError as error:
            print(errno.errorcode[error.errno])


def stage(descriptor):
    """Locks a file of two pages and writes to its second page, and behind it."""
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    os.pread(descriptor, 2 * PAGE, 0)
    fcntl.ioctl(descriptor, START)
    os.pwrite(descriptor, b"B" * PAGE, PAGE)
    os.pwrite(descriptor, b"B" * PAGE, 2 * PAGE)
    assert os.fstat(descriptor).st_size == 3 * PAGE
    assert os.pread(descriptor, PAGE, PAGE) == b"B" * PAGE


def show(descriptor):
    """Prints the size, and the first byte of each page."""
    size = os.fstat(descriptor).st_size
    pages = [os.pread(descriptor, 1, at).decode() for at in range(0, size, PAGE)]
    print(size, "".join(pages), flush=True)


def hold(path):
    """Keeps an atomic write open until it is killed."""
    stage(os.open(path, os.O_RDWR))
    print("held", flush=True)
    sys.stdin.read()


def wait(path):
    """Shows the file once it has its lock."""
    descriptor = os.open(path, os.O_RDWR)
    print("waiting", flush=True)
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    show(descriptor)


def end(path, how):
    """Shows the file after an atomic write has ended in one of several ways."""
    descriptor = os.open(path, os.O_RDWR)
    stage(descriptor)
    if how == "abort":
        fcntl.ioctl(descriptor, ABORT)
    elif how == "commit":
        fcntl.ioctl(descriptor, COMMIT)
    elif how == "close":
        os.close(os.dup(descriptor))
    elif how == "cut":
        os.ftruncate(descriptor, PAGE)
        assert os.fstat(descriptor).st_size == PAGE
        fcntl.ioctl(descriptor, COMMIT)
    show(descriptor)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
