//! The work of a store that gives space back, done to its end.

use crate::VtError;
use crate::compaction::Pressure;
use crate::store::Store;
use stitch_base::ErrorKind;

impl Store {
    /// Does all work that gives space back.
    pub(super) fn quiesce(&self) -> Result<(), VtError> {
        let is_written = self.write_out_what_fits()?;
        self.compactor.forget_avoided();
        self.level0.set_quiet(true);
        let pressure = self.compactor.pressure(true);
        debug_assert!(
            pressure >= Pressure::Idle,
            "space comes back from more than the shape"
        );
        loop {
            while self.compactor.compact_one(pressure)? {}
            let has_looked = self.compactor.scan_for_superseded(usize::MAX);
            let has_given_up = self.give_up_replaced();
            if !has_looked && !has_given_up && !self.sweep_garbage()? {
                break;
            }
        }
        match is_written {
            true => Ok(()),
            // There may be room now.
            false => self.member.write_all_out(),
        }
    }

    /// Seals and writes out everything. Returns false if some of it finds no space: that stays in
    /// memory and in the log.
    pub(super) fn write_out_what_fits(&self) -> Result<bool, VtError> {
        match self.member.write_all_out() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NoSpace && !self.gate.is_failed() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
