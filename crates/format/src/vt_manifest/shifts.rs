//! Shifts of tables: what their sequence numbers count more than their blocks say.

use super::TableMeta;
use stitch_base::Seqno;

impl TableMeta {
    /// Makes every sequence number in it count `more`.
    pub fn move_by(&mut self, more: u64) {
        self.shift += more;
        self.min_seqno = Seqno(self.min_seqno.0 + more);
        self.max_seqno = Seqno(self.max_seqno.0 + more);
    }

    /// Undoes [`Self::move_by`].
    ///
    /// # Panics
    /// If its shift is less.
    pub fn move_back_by(&mut self, less: u64) {
        assert!(less <= self.shift, "it was moved by as much");
        self.shift -= less;
        self.min_seqno = Seqno(self.min_seqno.0 - less);
        self.max_seqno = Seqno(self.max_seqno.0 - less);
    }
}
