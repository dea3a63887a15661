//! The clones in a transaction: they are shown as they were when it began, and can be read only.
//!
//! ```text
//! LOOKUP work/clone, in the transaction   the directory that a clone lies at
//!   --> its pin, as a snapshot that is open (views::table)
//!       --> the clone at that moment, a part of it: Node::Past
//! ```

use stitch_base::Ino;
use stitch_fs::PinnedClone;

use super::{OpenTransaction, Views};
use crate::adapter::views::node::Slot;
use crate::handler::{Answer, Handler as _};
use crate::wire::reply::Lookup;

/// Returns the number in the mount of a clone's directory that a transaction shows; `None` if
/// numbers have no room for it.
pub(in crate::adapter) fn shown_number(shown: &PinnedClone) -> Option<Ino> {
    let number = shown.number?;
    Some(Slot::of(shown.pin).number(number))
}

impl Views {
    /// Looks up a name in a directory of a transaction. A name that leads to a clone leads to what
    /// the transaction shows of it.
    pub(in crate::adapter::views) fn lookup_live_in_transaction(
        &self,
        (slot, ino): (Slot, Ino),
        name: &[u8],
    ) -> Answer<Lookup> {
        let table = &self.transactions.table;
        let found = table.within(slot, |open| {
            let found = open.lookup(ino, name)?;
            self.enter_shown_clone(open, found)
        })?;
        Ok(self.found_in_transaction((slot, ino), name, found))
    }

    /// Puts the directory of a clone where a lookup has found its graft, if it is shown.
    fn enter_shown_clone(&self, open: &OpenTransaction, looked_up: Lookup) -> Answer<Lookup> {
        let Lookup::Found(entry) = &looked_up else {
            return Ok(looked_up);
        };
        let (fs, graft) = (open.adapter().fs(), Slot::within(entry.ino));
        let Some(shown) = fs.shown_clone_at(graft) else {
            return Ok(looked_up);
        };
        let found = self.table.lookup_clone(shown.pin, graft);
        open.adapter().forget(graft, 1);
        found
    }
}
