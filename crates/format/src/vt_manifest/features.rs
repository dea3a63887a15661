//! What an edit or version has that programs before a feature bit do not know.

use super::{PinChanges, VersionEdit};

impl VersionEdit {
    /// Reports whether only programs that know pins read it.
    #[must_use]
    pub fn has_pins(&self) -> bool {
        self.pins != PinChanges::default()
    }

    /// Reports whether only programs that know pins of some trees read it.
    #[must_use]
    pub fn has_pin_scopes(&self) -> bool {
        let is_scoped = self.pins.new.iter().any(|pin| pin.trees.is_some());
        is_scoped || !self.pins.narrowed.is_empty()
    }

    /// Reports whether only programs that know pins of key ranges read it.
    #[must_use]
    pub fn has_pin_ranges(&self) -> bool {
        let has_ranges = self.pins.new.iter().any(|pin| !pin.ranges.is_empty());
        has_ranges || !self.pins.narrowed.is_empty()
    }

    /// Reports whether only programs that know branch trees read it: it lists a branch tree, or
    /// hides a tree in a store that never had a pin.
    #[must_use]
    pub fn has_branches(&self) -> bool {
        let mut trees = self.new_trees.iter().chain(&self.altered_trees);
        let hides_for_branches = self.pins.is_without_pins() && !self.pins.hidden.is_empty();
        hides_for_branches || trees.any(|tree| tree.branch.is_some())
    }

    /// Reports whether only programs that know branch trees of key ranges read it.
    #[must_use]
    pub fn has_branch_ranges(&self) -> bool {
        let mut trees = self.new_trees.iter().chain(&self.altered_trees);
        trees.any(|tree| tree.branch_ranges.is_some())
    }

    /// Reports whether only programs that know shifts of tables read it.
    #[must_use]
    pub fn has_shifts(&self) -> bool {
        self.added.iter().any(|(_, table)| table.shift > 0)
    }
}
