//! Checks of the file system's own rules, and their repair. The engine has no other user meanwhile.
//!
//! 1. `scan` reads all rows once, in order, and keeps a few words for each inode (about 100 bytes).
//! 2. `judge` compares what it kept and lists issues, each with all that its repair needs.
//!    What may be so because rows cannot be read is not an issue; that they cannot be read is one.
//! 3. `repair` makes each issue go away. What has no name any more gets one in `lost+found`; what
//!    belongs to nothing goes. Repairs can bring new issues to light, so check again afterwards.

mod allocated;
mod back;
mod external;
mod issue;
mod judge;
mod lost;
mod moments;
mod repair;
mod rollback;
mod scan;
mod shared;
mod views;

pub use issue::{Issue, Owner};
pub use rollback::finish_rollbacks;

use crate::locator::{Locator, Tree};
use crate::schema::SCHEMA;
use crate::{ExternalFiles, FsResult};
use stitch_base::sync::Arc;
use stitch_base::{Ino, TreeId};
use stitch_db::{Dictionary, Schema};
use stitch_format::fs_sys::FsHeader;
use stitch_kv::{Engine, LostKeys};

/// The trees of a file system.
struct Trees {
    schema: Schema,
    /// Without a seed of names if the header cannot be read.
    keys: Locator,
    meta: Dictionary,
    data: Dictionary,
    xattr: Dictionary,
    sys: Dictionary,
}

impl Trees {
    fn open(engine: &Arc<dyn Engine>, schema: &str) -> FsResult<Self> {
        let schema = Schema::open(Arc::clone(engine), schema)?;
        let sys = schema.dictionary(Tree::Sys.name())?;
        let row = schema.now().get(sys, &Locator::default().header());
        let header = row.ok().flatten().map(|row| FsHeader::decode(&row));
        let keys = match header {
            Some(Ok(header)) => Locator::new(&header),
            Some(Err(_)) | None => Locator::default(),
        };
        let (meta, data) = (schema.dictionary("meta")?, schema.dictionary("data")?);
        let xattr = schema.dictionary("xattr")?;
        debug_assert_ne!(meta.tree(), sys.tree(), "each tree is one");
        debug_assert_ne!(data.tree(), xattr.tree(), "each tree is one");
        Ok(Self {
            keys,
            meta,
            data,
            xattr,
            sys,
            schema,
        })
    }

    /// The dictionary of this tree, with its name.
    fn named(&self, tree: TreeId) -> Option<(&'static str, Dictionary)> {
        let all = [
            ("meta", self.meta),
            ("data", self.data),
            ("xattr", self.xattr),
            ("sys", self.sys),
        ];
        all.into_iter().find(|(_, d)| d.tree() == tree)
    }
}

/// Reads all rows and lists what is wrong. `progress` is called with the number of rows done so
/// far.
///
/// # Errors
/// [`crate::FsError::NotFound`] if the engine holds no file system; what the engine cannot read.
pub fn check(engine: &Arc<dyn Engine>, progress: &mut dyn FnMut(u64)) -> FsResult<Vec<Issue>> {
    check_around(engine, &[], progress)
}

/// As [`check()`], where the engine's own check has found that rows are lost: everything else is
/// checked.
///
/// # Errors
/// As [`check()`].
pub fn check_around(
    engine: &Arc<dyn Engine>,
    lost: &[LostKeys],
    progress: &mut dyn FnMut(u64),
) -> FsResult<Vec<Issue>> {
    check_with_files(engine, lost, None, progress)
}

/// As [`check_around`], and compares rows of external files with the plain files, both ways. A
/// plain file that no row names is an issue here, though it may be what a crash has left: opening
/// the file system removes it.
///
/// # Errors
/// As [`check()`]; [`crate::FsError::External`] if the plain files cannot be listed.
pub fn check_with_files(
    engine: &Arc<dyn Engine>,
    lost: &[LostKeys],
    files: Option<&dyn ExternalFiles>,
    progress: &mut dyn FnMut(u64),
) -> FsResult<Vec<Issue>> {
    let trees = Trees::open(engine, SCHEMA)?;
    let (mut issues, mut found) =
        check_trees((engine.as_ref(), &trees), lost, files, (None, progress))?;
    issues.extend(moments::damaged(engine.as_ref())?);
    issues.extend(views::policies_of_none(&found));
    let policies = std::mem::take(&mut found.policies);
    let live = views::take(&mut found);
    debug_assert!(!live.contains_key(&0), "mainline has no record");
    issues.extend(views::adrift(&found, &issues, 0, &live));
    let mut shown = views::Shown::default();
    shown.add(0, &found, &live);
    for (&number, record) in &live {
        // A clone lies in one that was there before.
        let is_nowhere = record.home != 0 && !live.contains_key(&record.home);
        if is_nowhere || record.home >= number {
            issues.push(Issue::CloneAdrift { number });
        }
        let Some(trees) = views::open(engine, number) else {
            issues.push(Issue::CloneWithoutTrees { number });
            continue;
        };
        let lost = views::lost_in(engine.as_ref(), &trees, lost);
        let (own, found) = check_trees(
            (engine.as_ref(), &trees),
            &lost,
            None,
            (Some(record.root), progress),
        )?;
        debug_assert!(
            own.iter()
                .all(|issue| !matches!(issue, Issue::InClone { .. })),
            "issues of one file system"
        );
        issues.extend(judge::false_policies(&policies, number, &found));
        issues.extend(views::adrift(&found, &own, number, &live));
        issues.extend(views::within(number, shown.paths(number, record, own)));
        shown.add(number, &found, &live);
    }
    Ok(issues)
}

/// Checks one file system; of a clone, which shows one directory. What was found is returned as far
/// as judging has left it.
fn check_trees(
    (engine, trees): (&dyn Engine, &Trees),
    lost: &[LostKeys],
    files: Option<&dyn ExternalFiles>,
    (top, progress): (Option<Ino>, &mut dyn FnMut(u64)),
) -> FsResult<(Vec<Issue>, scan::Found)> {
    let lost = lost::Lost::new(trees, lost)?;
    let mut found = scan::scan(trees, &lost, top, progress)?;
    debug_assert!(
        found.is_readable == found.header.is_some(),
        "without a header nothing is read"
    );
    let mut issues = lost.issues(trees, &found)?;
    found.issues.extend(rollback::interrupted(engine, &found)?);
    found.issues.extend(external::rows(&found));
    found.issues.extend(allocated::rows(&found));
    found.issues.extend(shared::rows(&found));
    issues.extend(judge::judge(&mut found, &lost));
    if let Some(files) = files.filter(|_| found.is_readable) {
        issues.extend(external::folder(&found.externals, &lost, files)?);
    }
    debug_assert!(found.issues.is_empty(), "the judge takes all issues");
    debug_assert!(
        found.is_readable || !issues.is_empty(),
        "a fault keeps it from being read"
    );
    Ok((issues, found))
}

/// Repairs what `check` found. Returns the number of issues repaired; check again afterwards, since
/// a repair can bring new issues to light. What cannot be read stays as it is.
///
/// A rollback that was interrupted stays: call [`finish_rollbacks`] before, and check again. What
/// is left of the rollback may put right what a repair would change.
///
/// # Errors
/// What the engine cannot write; issues before that are repaired.
///
/// # Durability
/// On the medium when this returns.
pub fn repair(engine: &Arc<dyn Engine>, issues: &[Issue]) -> FsResult<u64> {
    repair_with_files(engine, None, issues)
}

/// As [`repair()`], with the plain files of the file system: those that no row names are set aside.
///
/// # Errors
/// As [`repair()`].
///
/// # Durability
/// As [`repair()`].
pub fn repair_with_files(
    engine: &Arc<dyn Engine>,
    files: Option<&dyn ExternalFiles>,
    issues: &[Issue],
) -> FsResult<u64> {
    let trees = Trees::open(engine, SCHEMA)?;
    let mut repaired = repair::repair(&trees, files, issues)?;
    repaired += moments::drop_damaged(engine.as_ref(), issues)?;
    for (number, own) in views::by_number(issues) {
        if let Some(trees) = views::open(engine, number) {
            repaired += repair::repair(&trees, None, &own)?;
        }
    }
    debug_assert!(repaired <= issues.len() as u64, "an issue is repaired once");
    engine.sync()?;
    Ok(repaired)
}

#[cfg(test)]
mod tests;
