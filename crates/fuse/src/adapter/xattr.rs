//! Lists of extended attributes, which depend on the caller.

use stitch_base::Ino;
use stitch_fs::FileSystem;

use super::OrErrno as _;
use super::convert::Owner;
use super::process::Process;
use crate::handler::{Answer, Context};

/// Prefix of attributes that only root sees; the kernel does not hide them in a list.
const HIDDEN: &[u8] = b"trusted.";

/// Returns the names of an inode's attributes, each followed by a zero byte. The sender is looked
/// up only if there are hidden ones.
pub(super) fn names(fs: &FileSystem, context: &Context<'_>, ino: Ino) -> Answer<Vec<u8>> {
    let all = fs.list_xattr(&Owner::ROOT.caller(), ino).or_errno()?;
    let names = all.split_inclusive(|byte| *byte == 0);
    let seen = names.filter(|name| !name.starts_with(HIDDEN));
    let seen: Vec<u8> = seen.flatten().copied().collect();
    let sees_all = seen.len() == all.len() || Process::of(context).uid() == Some(0);
    Ok(if sees_all { all } else { seen })
}
