//! Requests for what is different below a directory at two moments; see [`crate::differences`].

use std::collections::VecDeque;

use stitch_base::Ino;
use stitch_base::sync::{Arc, Mutex};
use stitch_fs::{
    DirAt, FileSystem, FsError, FsResult, PathChange, TouchedPaths, TwinView, VIEW_INO_BITS,
};

use super::Views;
use super::changes::limited_to;
use super::node::{Node, Slot};
use super::transactions::ReplyWords;
use crate::adapter::OrErrno as _;
use crate::adapter::report::put_framed;
use crate::differences::DifferenceRequest;
use crate::errno::Errno;
use crate::handler::{Answer, Context};
use crate::wire::codec::Sink;

/// Lists that are kept until their callers have asked for the rest.
const LISTS_MAX: usize = 4;
/// Directories that are remembered until the users who opened them compare them.
const SHOWN_MAX: usize = 64;

/// Changes that did not fit in one answer.
#[derive(Debug)]
struct KeptList {
    number: u64,
    /// The user that it is for; `None` for root.
    owner: Option<u32>,
    changes: Arc<Vec<PathChange>>,
}

/// Number of a list, its changes, and the index of the first one to tell.
type ListFrom = (u64, Arc<Vec<PathChange>>, usize);

/// The last lists of a mount that are not told to their end.
#[derive(Debug, Default)]
pub(super) struct DifferenceLists(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    last: u64,
    kept: VecDeque<KeptList>,
    /// Users, and directories that they have opened to compare them.
    shown: VecDeque<(u32, Ino)>,
}

impl DifferenceLists {
    /// Keeps a list, and forgets the oldest one if there are too many. Returns its number.
    fn keep(&self, owner: Option<u32>, changes: &Arc<Vec<PathChange>>) -> u64 {
        let mut lists = self.0.lock();
        lists.last += 1;
        let number = lists.last;
        lists.kept.push_back(KeptList {
            number,
            owner,
            changes: Arc::clone(changes),
        });
        if lists.kept.len() > LISTS_MAX {
            lists.kept.pop_front();
        }
        debug_assert!(lists.kept.len() <= LISTS_MAX, "one came, one went");
        number
    }

    /// Keeps a list that is about to be told from its beginning.
    fn begin(&self, owner: Option<u32>, changes: Vec<PathChange>) -> ListFrom {
        let changes = Arc::new(changes);
        (self.keep(owner, &changes), changes, 0)
    }

    fn find(&self, number: u64, owner: Option<u32>) -> Answer<Arc<Vec<PathChange>>> {
        let lists = self.0.lock();
        let is_it = |list: &&KeptList| (list.number, list.owner) == (number, owner);
        let found = lists.kept.iter().find(is_it).ok_or(Errno::ESTALE)?;
        Ok(Arc::clone(&found.changes))
    }

    /// Notes that a user has opened a directory, and forgets the oldest note if there are too many.
    fn show(&self, user: u32, dir: Ino) {
        let mut lists = self.0.lock();
        lists.shown.push_back((user, dir));
        if lists.shown.len() > SHOWN_MAX {
            lists.shown.pop_front();
        }
        debug_assert!(lists.shown.len() <= SHOWN_MAX, "one came, one went");
    }

    /// Takes the note that a user has opened a directory. Reports whether there was one.
    fn take_shown(&self, user: u32, dir: Ino) -> bool {
        let mut lists = self.0.lock();
        let found = lists.shown.iter().position(|note| *note == (user, dir));
        found.and_then(|at| lists.shown.remove(at)).is_some()
    }

    fn forget(&self, number: u64) {
        self.0.lock().kept.retain(|list| list.number != number);
    }
}

impl Views {
    /// Serves a request for differences.
    pub(super) fn ask_differences(
        &self,
        context: &Context<'_>,
        dir: Ino,
        input: &[u8],
        out: &mut Sink<'_>,
    ) -> Answer<i32> {
        let owner = limited_to(context)?;
        let request = DifferenceRequest::parse(input).ok_or(Errno::EINVAL)?;
        let (number, changes, from) = match request {
            DifferenceRequest::List(old) => {
                let compare = |fs: &FileSystem, sides| fs.differences(sides, owner);
                let changes = self.compare((Ino(old), dir), owner, compare)?;
                self.difference_lists.begin(owner, changes)
            }
            DifferenceRequest::Paths(old) | DifferenceRequest::Copy(old) => {
                let takes_two = matches!(request, DifferenceRequest::Copy(_));
                let compare = |fs: &FileSystem, sides: (DirAt, DirAt)| {
                    if sides.0.view != sides.1.view && !takes_two {
                        return Err(FsError::Unsupported);
                    }
                    fs.touched_paths(sides, owner)
                };
                let paths = self.compare((Ino(old), dir), owner, compare)?;
                self.difference_lists.begin(owner, by_side(paths))
            }
            DifferenceRequest::Parts(from) => return self.tell_parts(dir, from, out),
            DifferenceRequest::Pairs(old, from) => {
                let pairs = self.compare((Ino(old), dir), owner, FileSystem::clone_pairs)?;
                return tell_pairs(&pairs, from, out);
            }
            DifferenceRequest::Twins(old, from) => {
                let twins = self.compare((Ino(old), dir), owner, FileSystem::twin_views)?;
                return tell_twins(&twins, from, out);
            }
            DifferenceRequest::Show => {
                if let Some(user) = owner {
                    self.difference_lists.show(user, dir);
                }
                return put_framed(b"", out).map(|()| 0);
            }
            DifferenceRequest::More(number, from) => {
                (number, self.difference_lists.find(number, owner)?, from)
            }
        };
        let (reply, is_whole) = listed(number, &changes, from);
        if is_whole {
            self.difference_lists.forget(number);
        }
        put_framed(&reply.0, out).map(|()| 0)
    }

    /// Compares a directory on two sides.
    fn compare<T>(
        &self,
        (old, new): (Ino, Ino),
        owner: Option<u32>,
        compare: impl FnOnce(&FileSystem, (DirAt, DirAt)) -> FsResult<T>,
    ) -> Answer<T> {
        // Only one side is open: the way to the other view may be closed to the caller.
        let is_open = owner.is_none_or(|user| self.difference_lists.take_shown(user, old));
        let (old, new) = (self.dir_at(old)?, self.dir_at(new)?);
        let is_one_view = old.view == new.view;
        if old.dir != new.dir || (is_one_view && old.pin.is_none()) {
            return Err(Errno::EINVAL);
        }
        if !is_open && !is_one_view {
            return Err(Errno::EPERM);
        }
        compare(self.mainline.fs(), (old, new)).or_errno()
    }

    /// Returns the view and the moment that a number is of, and the number in it.
    fn dir_at(&self, number: Ino) -> Answer<DirAt> {
        match self.node(number) {
            Node::Mainline => Ok(DirAt {
                view: 0,
                dir: number,
                pin: None,
            }),
            Node::Past(slot, number) => self.table.within(slot, |past| {
                let (part, dir) = past.part(number)?;
                Ok(DirAt {
                    view: part.fs().view_number(),
                    dir,
                    pin: Some(past.view().info().id),
                })
            }),
            Node::Live(slot, _) if slot.is_transaction() => Err(Errno::ENOTSUP),
            Node::Live(slot, dir) => Ok(DirAt {
                view: self.clones.by_slot(slot)?.info().number,
                dir,
                pin: None,
            }),
            Node::Control(_) | Node::Link | Node::TransactionLink(_) | Node::Unknown => {
                Err(Errno::EINVAL)
            }
        }
    }

    /// Tells how inodes are numbered where a directory is, and in which view it is; the clones of
    /// its snapshot from a part on.
    fn tell_parts(&self, dir: Ino, from: usize, out: &mut Sink<'_>) -> Answer<i32> {
        let home = self.dir_at(dir)?.view;
        let (ino_bits, clones) = match self.node(dir) {
            Node::Past(slot, _) => self.table.within(slot, |past| {
                let (ino_bits, clones) = past.view().numbered_clones();
                Ok((ino_bits, clones.to_vec()))
            })?,
            _ => (VIEW_INO_BITS, Vec::new()),
        };
        let words = [u64::from(ino_bits), home_base(home), clones.len() as u64];
        let words = words.map(|word| word.to_string());
        let mut reply = ReplyWords::default();
        let fits = reply.add(&words.each_ref().map(String::as_bytes));
        debug_assert!(fits, "three short words");
        for number in clones.iter().skip(from) {
            if !reply.add(&[base_of(*number).to_string().as_bytes()]) {
                break;
            }
        }
        put_framed(&reply.0, out).map(|()| 0)
    }
}

/// Tells the pairs from an index on, as many as fit.
fn tell_pairs(pairs: &[(u64, u64)], from: usize, out: &mut Sink<'_>) -> Answer<i32> {
    let mut reply = ReplyWords::default();
    let fits = reply.add(&[pairs.len().to_string().as_bytes()]);
    debug_assert!(fits, "one short word");
    for (old, new) in pairs.iter().skip(from) {
        let words = [*old, *new].map(|number| base_of(number).to_string());
        if !reply.add(&words.each_ref().map(String::as_bytes)) {
            break;
        }
    }
    put_framed(&reply.0, out).map(|()| 0)
}

/// Tells the twins from an index on, as many as fit.
fn tell_twins(twins: &[TwinView], from: usize, out: &mut Sink<'_>) -> Answer<i32> {
    let mut reply = ReplyWords::default();
    let (since, count) = (i64::MIN.to_string(), twins.len().to_string());
    let fits = reply.add(&[since.as_bytes(), count.as_bytes()]);
    debug_assert!(fits, "two short words");
    for twin in twins.iter().skip(from) {
        let words = [home_base(twin.old), home_base(twin.new), twin.first_own.0];
        let words = words.map(|word| word.to_string());
        if !reply.add(&words.each_ref().map(String::as_bytes)) {
            break;
        }
    }
    put_framed(&reply.0, out).map(|()| 0)
}

/// What the numbers of a clone have in a mount beside the inode's.
fn base_of(clone: u64) -> u64 {
    debug_assert!(clone > 0, "0 is mainline");
    Slot::of_clone(clone).base()
}

/// What the numbers of a view have in a mount beside the inode's.
fn home_base(view: u64) -> u64 {
    if view == 0 { 0 } else { base_of(view) }
}

/// The paths of both moments as one list: those that go, and those that come.
fn by_side(paths: TouchedPaths) -> Vec<PathChange> {
    let old = paths.old.into_iter().map(PathChange::Removed);
    old.chain(paths.new.into_iter().map(PathChange::Added))
        .collect()
}

/// As many of the changes from an index on as fit, and whether these are the last ones.
fn listed(number: u64, changes: &[PathChange], from: usize) -> (ReplyWords, bool) {
    let (number, count) = (number.to_string(), changes.len().to_string());
    let mut reply = ReplyWords::default();
    let fits = reply.add(&[number.as_bytes(), count.as_bytes()]);
    debug_assert!(fits, "two short words");
    let rest = changes.get(from..).unwrap_or_default();
    let is_whole = rest.iter().all(|change| reply.add_change(change));
    (reply, is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_for_its_caller_and_the_oldest_goes_first() {
        let lists = DifferenceLists::default();
        let changes = Arc::new(vec![PathChange::Added(b"a".to_vec())]);
        let first = lists.keep(Some(7), &changes);
        assert_eq!(lists.find(first, Some(7)), Ok(Arc::clone(&changes)));
        assert_eq!(lists.find(first, Some(8)), Err(Errno::ESTALE));
        assert_eq!(lists.find(first, None), Err(Errno::ESTALE));
        let last = (0..LISTS_MAX).map(|_| lists.keep(None, &changes)).last();
        assert_eq!(lists.find(first, Some(7)), Err(Errno::ESTALE));
        let last = last.expect("some were kept");
        assert!(lists.find(last, None).is_ok());
        lists.forget(last);
        assert_eq!(lists.find(last, None), Err(Errno::ESTALE));
    }

    #[test]
    fn a_directory_is_shown_for_one_comparison_of_its_user() {
        let lists = DifferenceLists::default();
        lists.show(7, Ino(9));
        assert!(!lists.take_shown(8, Ino(9)) && !lists.take_shown(7, Ino(8)));
        assert!(lists.take_shown(7, Ino(9)));
        assert!(!lists.take_shown(7, Ino(9)), "it was taken");
        (0..=SHOWN_MAX).for_each(|dir| lists.show(7, Ino(dir as u64)));
        assert!(!lists.take_shown(7, Ino(0)), "the oldest goes first");
        assert!(lists.take_shown(7, Ino(1)));
    }

    #[test]
    fn a_long_list_comes_in_several_answers() {
        let added = |number: usize| PathChange::Added(format!("{number:0>200}").into_bytes());
        let changes: Vec<PathChange> = (0..200).map(added).collect();
        let (reply, is_whole) = listed(3, &changes, 0);
        let words: Vec<&[u8]> = reply.0.split(|byte| *byte == 0).collect();
        let told = (words.len() - 3) / 3;
        assert!(!is_whole && (50..200).contains(&told), "{told} of 200");
        assert_eq!(&words[..4], [&b"3"[..], b"200", b"+", changes[0].path()]);
        let (reply, is_whole) = listed(3, &changes, 199);
        assert!(is_whole && reply.0.len() < 300);
        assert!(listed(3, &changes, 999).1, "there is nothing more");
    }
}
