//! Numbers of holes by length. They tell how much space blocks of any length find, without a walk
//! over all holes.
//!
//! Holes of up to [`EXACT_PAGES`] pages are counted by their length, longer ones by powers of two.

use super::{PAGE_BYTES, Zones};

/// Longest holes that are counted by length, in pages: a power of two.
const EXACT_PAGES: u32 = 16;
/// Number of powers of two from there to the longest zone.
const POWERS: usize = (u32::BITS - EXACT_PAGES.ilog2() - PAGE_BYTES.ilog2()) as usize;

/// Holes by length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HoleLengths {
    /// `exact[n]`: holes of `n + 1` pages.
    exact: [u32; EXACT_PAGES as usize],
    /// `longer[n]`: holes of more than `EXACT_PAGES << n` pages, and up to twice as many, with
    /// their pages.
    longer: [(u32, u32); POWERS],
}

/// Returns the index in `longer` of a hole of `pages`.
const fn power(pages: u32) -> usize {
    debug_assert!(pages > EXACT_PAGES, "shorter holes are counted by length");
    ((pages - 1).ilog2() - EXACT_PAGES.ilog2()) as usize
}

impl HoleLengths {
    /// Adds a hole of `pages` whole pages; nothing for 0.
    pub(super) fn add(&mut self, pages: u32) {
        match pages {
            0 => {}
            1..=EXACT_PAGES => self.exact[pages as usize - 1] += 1,
            _ => {
                let (count, sum) = &mut self.longer[power(pages)];
                (*count, *sum) = (*count + 1, *sum + pages);
            }
        }
    }

    /// Removes a hole.
    pub(super) fn remove(&mut self, pages: u32) {
        match pages {
            0 => {}
            1..=EXACT_PAGES => {
                let count = &mut self.exact[pages as usize - 1];
                assert!(*count > 0, "a hole was added before it is removed");
                *count -= 1;
            }
            _ => {
                let (count, sum) = &mut self.longer[power(pages)];
                assert!(
                    *count > 0 && *sum >= pages,
                    "a hole was added before it is removed"
                );
                (*count, *sum) = (*count - 1, *sum - pages);
            }
        }
    }
}

/// The sum over many zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    exact: [u64; EXACT_PAGES as usize],
    longer: [(u64, u64); POWERS],
}

impl Sums {
    /// Adds the holes of a zone.
    pub(super) fn add(&mut self, zone: &HoleLengths) {
        for (sum, count) in self.exact.iter_mut().zip(zone.exact) {
            *sum += u64::from(count);
        }
        for (sum, (count, pages)) in self.longer.iter_mut().zip(zone.longer) {
            (sum.0, sum.1) = (sum.0 + u64::from(count), sum.1 + u64::from(pages));
        }
    }

    /// Removes the holes of a zone.
    pub(super) fn take(&mut self, zone: &HoleLengths) {
        for (sum, count) in self.exact.iter_mut().zip(zone.exact) {
            assert!(
                *sum >= u64::from(count),
                "a zone was added before it is taken"
            );
            *sum -= u64::from(count);
        }
        for (sum, (count, pages)) in self.longer.iter_mut().zip(zone.longer) {
            debug_assert!(
                sum.0 >= u64::from(count) && sum.1 >= u64::from(pages),
                "a zone was added before it is taken"
            );
            (sum.0, sum.1) = (sum.0 - u64::from(count), sum.1 - u64::from(pages));
        }
    }

    /// Returns a lower bound of the pages that extents of `run` pages can use in these holes.
    pub(super) fn roomy_pages(&self, run: u64) -> u64 {
        assert!(run > 0, "blocks are not empty");
        let exact = self.exact.iter().zip(1..);
        let exact: u64 = exact
            .map(|(count, pages)| count * (pages / run * run))
            .sum();
        let longer = self.longer.iter().enumerate();
        // Each of these is at least this long.
        let fits = longer.filter(|&(n, _)| u64::from(EXACT_PAGES) << n >= run - 1);
        let longer: u64 = fits
            .map(|(_, (count, pages))| pages - count * (run - 1))
            .sum();
        exact + longer
    }
}

impl Zones {
    /// Returns a lower bound of the bytes that can be allocated in extents of `run_bytes`: free
    /// zones, and holes as long as that. Extents begin at pages, so 0 means one page.
    #[must_use]
    pub fn roomy_bytes(&self, run_bytes: u64) -> u64 {
        let state = self.state.lock();
        debug_assert!(
            state
                .held
                .is_none_or(|zone| !state.free_zones.contains(&zone)),
            "held apart"
        );
        let whole = state.free_zones.iter();
        let whole = whole.map(|&zone| u64::from(state.zones[zone as usize].len()));
        let least = u32::try_from(run_bytes).unwrap_or(u32::MAX);
        // The longest hole of each zone is known exactly, other long ones are not.
        let longest = state.by_hole.range((least, 0)..);
        let longest = longest.map(|&(len, _)| u64::from(len)).sum::<u64>();
        let run_pages = run_bytes.div_ceil(PAGE_BYTES).max(1);
        let holes = longest.max(state.lengths.roomy_pages(run_pages) * PAGE_BYTES);
        let held = state
            .held
            .map(|zone| state.zones[zone as usize].largest_usable());
        let held = held.filter(|&len| len >= least).unwrap_or(0);
        whole.sum::<u64>() + holes + u64::from(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stitch_base::random::Rng;

    #[test]
    fn what_is_found_is_there_and_nearly_all_of_it() {
        let mut rng = Rng::new(5);
        for _ in 0..200 {
            let most = [3, 16, 17, 40, 5000][usize::try_from(rng.below(5)).unwrap()];
            let holes: Vec<u32> = (0..rng.below(40))
                .map(|_| u32::try_from(rng.below(most)).unwrap())
                .collect();
            let mut lengths = HoleLengths::default();
            holes.iter().for_each(|&pages| lengths.add(pages));
            let mut sums = Sums::default();
            sums.add(&lengths);
            for run in [1, 2, 5, 12, 16, 17, 33, 100, 2500] {
                let found = sums.roomy_pages(run);
                let longest = holes.iter().map(|&pages| u64::from(pages));
                let there: u64 = longest.map(|pages| pages / run * run).sum();
                assert!(found <= there, "{found} of {there}, in runs of {run}");
                let is_exact = holes.iter().all(|&pages| pages <= EXACT_PAGES);
                assert!(found == there || run > 1 && !is_exact, "{run}: {holes:?}");
            }
            sums.take(&lengths);
            assert_eq!(sums, Sums::default());
            holes.iter().for_each(|&pages| lengths.remove(pages));
            assert_eq!(lengths, HoleLengths::default());
        }
    }

    #[test]
    fn the_longest_hole_has_a_place() {
        let mut lengths = HoleLengths::default();
        let longest = u32::MAX / u32::try_from(PAGE_BYTES).unwrap();
        for pages in [EXACT_PAGES + 1, longest] {
            lengths.add(pages);
        }
        let mut sums = Sums::default();
        sums.add(&lengths);
        let run = u64::from(EXACT_PAGES) + 1;
        // All of each, except for a rest that is shorter than an extent.
        assert_eq!(sums.roomy_pages(run), 1 + u64::from(longest) - (run - 1));
    }
}
