//! Workloads by name.

use anyhow::{Result, ensure};

/// The items of `all` that a list of names means, all if it is empty. A name also means those that
/// it begins, up to a `-`.
pub(crate) fn choose<T>(
    all: Vec<T>,
    name_of: impl Fn(&T) -> &'static str,
    names: &[String],
) -> Result<Vec<T>> {
    for name in names {
        let is_known = all.iter().any(|item| is_meant(name, name_of(item)));
        ensure!(
            is_known,
            "there is no workload `{name}`; see `stitch-bench list`"
        );
    }
    let is_chosen = |item: &T| {
        let mut names_left = names.iter();
        names.is_empty() || names_left.any(|name| is_meant(name, name_of(item)))
    };
    Ok(all.into_iter().filter(is_chosen).collect())
}

/// Whether a name means this one.
pub(crate) fn is_meant(name: &str, one: &str) -> bool {
    let rest = one.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}
