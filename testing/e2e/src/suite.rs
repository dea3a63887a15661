//! The suites and their cases.

mod amplification;
mod clones;
mod coherence;
mod differential;
mod enospc;
mod faults;
mod fsx;
mod handles;
mod history;
mod isolation;
mod kernel_source;
pub(crate) mod kill9;
mod memory;
mod passthrough;
mod pjdfstest;
mod realwork;
mod requests;
mod restart;
mod rmtree;
mod rocksdb;
mod rollback;
mod send;
mod serve;
mod snapshots;
mod sqlite;
mod txn;
mod txn_kv;
mod users;

use crate::harness::report::Case;

/// Every suite.
pub(crate) const ALL: &[(&str, &[Case])] = &[
    ("users", users::CASES),
    ("requests", requests::CASES),
    ("rmtree", rmtree::CASES),
    ("snapshots", snapshots::CASES),
    ("clones", clones::CASES),
    ("rollback", rollback::CASES),
    ("history", history::CASES),
    ("txn", txn::CASES),
    ("txn-kv", txn_kv::CASES),
    ("isolation", isolation::CASES),
    ("send", send::CASES),
    ("handles", handles::CASES),
    ("coherence", coherence::CASES),
    ("differential", differential::CASES),
    ("pjdfstest", pjdfstest::CASES),
    ("fsx", fsx::CASES),
    ("enospc", enospc::CASES),
    ("faults", faults::CASES),
    ("amplification", amplification::CASES),
    ("memory", memory::CASES),
    ("kill9", kill9::CASES),
    ("restart", restart::CASES),
    ("passthrough", passthrough::CASES),
    ("rocksdb", rocksdb::CASES),
    ("serve", serve::CASES),
    ("sqlite", sqlite::CASES),
    ("realwork", realwork::CASES),
];
