//! The default memory budget of a store: a quarter of the memory that this process can have.
//!
//! This is the machine's memory or, where smaller, the limit of its control group or of any group
//! above, in version 1 and version 2 of their interface, or that of its address space or data
//! (`ulimit -v`, `ulimit -d`).

use rustix::process::{Resource, getrlimit};
use std::fs;
use std::path::{Path, PathBuf};

/// No store gets less than this, in bytes.
pub const BUDGET_BYTES_MIN: u64 = 64 << 20;

/// Part of a budget for rows of keys where keys are all that is served: a half of what is above the
/// least budget.
#[must_use]
pub const fn key_rows_of_server(budget_bytes: u64) -> u64 {
    budget_bytes.saturating_sub(BUDGET_BYTES_MIN) / 2
}

/// The same where keys are served beside a mount: an eighth.
#[must_use]
pub const fn key_rows_of_mount(budget_bytes: u64) -> u64 {
    budget_bytes.saturating_sub(BUDGET_BYTES_MIN) / 8
}

/// A quarter of this process's memory, at least [`BUDGET_BYTES_MIN`].
#[must_use]
pub fn default_budget() -> u64 {
    let limits = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    let available = available_under(Path::new("/"));
    (limits.into_iter().flatten().fold(available, u64::min) / 4).max(BUDGET_BYTES_MIN)
}

/// The smallest limit that holds for this process, with `/proc` and `/sys` looked up in `root`.
fn available_under(root: &Path) -> u64 {
    let machine = machine_bytes(root).unwrap_or(BUDGET_BYTES_MIN * 4);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|line| group_limits(root, line));
    limits.fold(machine, u64::min)
}

fn machine_bytes(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The limits of a group and of those above it. `line` is one of `/proc/self/cgroup`:
/// `hierarchy:controllers:path`, with hierarchy 0 and no controllers in version 2.
fn group_limits(root: &Path, line: &str) -> Vec<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    let (mounted, file) = if controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max")
    } else if controllers.split(',').any(|c| c == "memory") {
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        return Vec::new();
    };
    let top = root.join(mounted);
    // In a container the path may be one of the host, of which only the top is seen here.
    let mut group: PathBuf = top.join(path.trim_start_matches('/'));
    let mut limits = Vec::new();
    while group.starts_with(&top) {
        let limit = fs::read_to_string(group.join(file)).ok();
        limits.extend(limit.and_then(|text| text.trim().parse::<u64>().ok()));
        if !group.pop() {
            break;
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn machine(kib: u64) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let text = format!("MemTotal:       {kib} kB\nMemFree: 1 kB\n");
        put(root.path(), "proc/meminfo", &text);
        root
    }

    #[test]
    fn without_groups_the_machine_counts() {
        let root = machine(1 << 20);
        assert_eq!(available_under(root.path()), 1 << 30);
    }

    #[test]
    fn the_smallest_limit_of_version_2_counts() {
        let root = machine(1 << 20);
        put(root.path(), "proc/self/cgroup", "0::/a/b\n");
        put(root.path(), "sys/fs/cgroup/a/b/memory.max", "max\n");
        put(root.path(), "sys/fs/cgroup/a/memory.max", "536870912\n");
        assert_eq!(available_under(root.path()), 512 << 20);
    }

    #[test]
    fn the_smallest_limit_of_version_1_counts() {
        let root = machine(1 << 20);
        let groups = "5:cpu,cpuacct:/x\n4:memory:/x/y\n0::/\n";
        put(root.path(), "proc/self/cgroup", groups);
        let at = |group: &str| format!("sys/fs/cgroup/memory/{group}memory.limit_in_bytes");
        put(root.path(), &at(""), "9223372036854771712\n");
        put(root.path(), &at("x/"), "300000000\n");
        put(root.path(), &at("x/y/"), "400000000\n");
        assert_eq!(available_under(root.path()), 300_000_000);
    }

    #[test]
    fn a_group_that_is_not_seen_here_falls_back_to_the_top() {
        let root = machine(1 << 20);
        put(root.path(), "proc/self/cgroup", "0::/../../host/path\n");
        put(root.path(), "sys/fs/cgroup/memory.max", "100000000\n");
        assert_eq!(available_under(root.path()), 100_000_000);
    }

    #[test]
    fn a_budget_is_never_tiny() {
        assert!(default_budget() >= BUDGET_BYTES_MIN);
    }
}
