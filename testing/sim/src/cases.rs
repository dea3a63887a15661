//! The cases that the simulator runs: a system, a scenario, and how many times as often as others.

use crate::beside::{self, Beside};
use crate::crash::{self, Effort};
use crate::files::fault::PlainEffort;
use crate::files::views::{ViewsSystem, sends};
use crate::files::{self, FsSystem};
use crate::kv::Host;
use crate::liar::{Liar, Lie};
use crate::{System, damage, fault, nospace};
use std::panic::{AssertUnwindSafe, catch_unwind};
use stitch_base::sync::Arc;
use stitch_volume::Refusals;

/// The counts of one seed of one case, with names, for the summary.
pub type Numbers = Vec<(&'static str, u64)>;

type RunCase = Box<dyn Fn(u64) -> Result<Numbers, String> + Send + Sync>;

/// A system in a scenario.
pub struct Case {
    /// `system/scenario`, as `--case` takes it.
    pub name: String,
    /// True if one of a few seeds must fail: the system is broken on purpose.
    pub is_canary: bool,
    run: RunCase,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// How much one seed of each scenario does.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Most operations of one life.
    pub ops_max: u64,
    /// Points at which one life crashes.
    pub points: usize,
    /// Device calls that fail, one after the other.
    pub faults: u64,
    /// Ways in which one image is damaged.
    pub damages: u64,
}

impl Case {
    fn new(
        name: String,
        is_canary: bool,
        run: impl Fn(u64) -> Result<Numbers, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            is_canary,
            run: Box::new(run),
        }
    }

    /// Runs one seed. A panic is a failure like any other.
    ///
    /// # Errors
    /// What went wrong.
    pub fn run(&self, seed: u64) -> Result<Numbers, String> {
        match catch_unwind(AssertUnwindSafe(|| (self.run)(seed))) {
            Ok(result) => result,
            Err(panic) => Err(format!("panicked: {}", panic_text(&*panic))),
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    panic
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_else(|| "without a message".to_owned())
}

/// Every scenario for several instances on one volume.
pub fn of_instances(name: &str, beside: &Beside, size: Size) -> Vec<Case> {
    let crash = |scenario: &str, is_canary, beside: Beside| {
        Case::new(format!("{name}/{scenario}"), is_canary, move |seed| {
            let stats = beside::crash::explore(&beside, seed)?;
            Ok(vec![
                ("operations", stats.ops),
                ("refused", stats.refused),
                ("instances made", stats.created),
                ("removed", stats.removed),
                ("images", stats.images),
            ])
        })
    };
    let canaries = canaries().into_iter();
    let canaries = canaries.map(|(s, wrap)| crash(s, true, beside.clone().with_wrap(wrap)));
    let shared = beside.clone();
    let fault = Case::new(format!("{name}/fault"), false, move |seed| {
        let stats = beside::fault::explore(&shared, seed, size.faults / 2)?;
        Ok(fault_numbers(&stats))
    });
    let shared = beside
        .clone()
        .with_wrap(|d| Liar::wrap(d, Lie::HidesErrors));
    let hidden = format!("{name}/canary-hides-errors");
    let hidden = Case::new(hidden, true, move |seed| {
        let stats = beside::fault::explore(&shared, seed, size.faults)?;
        Ok(fault_numbers(&stats))
    });
    let shared = beside.clone();
    let damage = Case::new(format!("{name}/damage"), false, move |seed| {
        let stats = beside::damage::explore(&shared, seed, size.damages)?;
        Ok(damage_numbers(&stats))
    });
    let shared = beside.clone();
    let nospace = Case::new(format!("{name}/nospace"), false, move |seed| {
        short_instances(&shared, seed, size)
    });
    let shared = beside.clone();
    let full = Case::new(format!("{name}/full"), false, move |seed| {
        let stats = beside::full::explore(&shared, seed)?;
        Ok(vec![
            ("bytes filled", stats.filled_bytes),
            ("given back and used", stats.back_bytes),
            ("refused", stats.refused),
            ("images", stats.images),
        ])
    });
    let crash = crash("crash", false, beside.clone());
    [crash, fault, damage, nospace, full, hidden]
        .into_iter()
        .chain(canaries)
        .collect()
}

/// Refuses some of the allocations of a workload, evenly spread.
fn short_instances(beside: &Beside, seed: u64, size: Size) -> Result<Numbers, String> {
    let step = size.faults;
    let numbers = beside::nospace::RefusalNumbers {
        first: seed % step,
        step,
    };
    let refused = match seed % 2 {
        0 => nospace::Refused::One,
        _ => nospace::Refused::Rest,
    };
    let turns = 3 * size.ops_max;
    let stats = beside::nospace::each(beside, seed, turns, numbers, refused)?;
    Ok(vec![
        ("runs", stats.runs),
        ("refused", stats.refused),
        ("told", stats.told),
        ("images", stats.images),
    ])
}

fn fault_numbers(stats: &fault::FaultStats) -> Numbers {
    vec![
        ("faults", stats.runs),
        ("met", stats.hits),
        ("reported", stats.errors),
    ]
}

fn damage_numbers(stats: &damage::DamageStats) -> Numbers {
    vec![
        ("damaged", stats.images),
        ("refused", stats.refused),
        ("partly read", stats.unreadable),
        ("whole", stats.whole),
        ("operations after it", stats.later_ops),
    ]
}

/// Every scenario for one system.
pub fn of_system<S>(system: S, size: Size) -> Vec<Case>
where
    S: System + Send + Sync + 'static,
{
    let name = system.name();
    let system = Arc::new(system);
    let effort = Effort {
        ops_max: size.ops_max,
        points: size.points,
        ..Effort::default()
    };
    let mut cases = Vec::new();
    let shared = Arc::clone(&system);
    cases.push(Case::new(format!("{name}/crash"), false, move |seed| {
        crash_numbers(&*shared, seed, effort)
    }));
    let shared = Arc::clone(&system);
    cases.push(Case::new(format!("{name}/fault"), false, move |seed| {
        let stats = fault::explore(&*shared, seed, size.ops_max, size.faults)?;
        Ok(fault_numbers(&stats))
    }));
    let shared = Arc::clone(&system);
    cases.push(Case::new(format!("{name}/damage"), false, move |seed| {
        let stats = damage::explore(&*shared, seed, size.ops_max, size.damages)?;
        Ok(damage_numbers(&stats))
    }));
    let shared = Arc::clone(&system);
    cases.push(Case::new(format!("{name}/nonsense"), false, move |seed| {
        damage::nonsense(&*shared, seed).map(|()| vec![("media", 1)])
    }));
    for (scenario, wrap) in canaries() {
        let shared = Arc::clone(&system);
        let effort = Effort { wrap, ..effort };
        cases.push(Case::new(format!("{name}/{scenario}"), true, move |seed| {
            crash_numbers(&*shared, seed, effort)
        }));
    }
    cases
}

/// Errors of the plain files of a file system that has large files beside its store.
pub fn of_plain_files<H>(system: FsSystem<H>, size: Size) -> Vec<Case>
where
    H: Host + Send + Sync + 'static,
{
    let name = system.name();
    let system = Arc::new(system);
    let case = |scenario: &str, is_hidden| {
        let shared = Arc::clone(&system);
        let effort = PlainEffort {
            ops_max: size.ops_max,
            runs: size.faults / 2,
            is_hidden,
        };
        Case::new(format!("{name}/{scenario}"), is_hidden, move |seed| {
            let stats = files::fault::explore(&shared, seed, effort)?;
            Ok(fault_numbers(&stats))
        })
    };
    vec![case("fault", false), case("canary-hides-errors", true)]
}

/// Snapshots of a file system that are sent and received while it crashes.
pub fn of_sends<H>(system: ViewsSystem<H>, size: Size) -> Vec<Case>
where
    H: Host + Send + Sync + 'static,
{
    let name = system.name();
    let system = Arc::new(system);
    let effort = Effort {
        ops_max: size.ops_max / 2,
        points: size.points / 2,
        ..Effort::default()
    };
    let case = |scenario: &str, is_canary, wrap| {
        let shared = Arc::clone(&system);
        let effort = Effort { wrap, ..effort };
        Case::new(format!("{name}/{scenario}"), is_canary, move |seed| {
            let stats = sends::explore(&shared, seed, effort)?;
            Ok(vec![
                ("operations beside", stats.ops),
                ("received", stats.received),
                ("ended early", stats.cuts),
                ("refused", stats.refused),
                ("parts left", stats.parts),
                ("images", stats.images),
            ])
        })
    };
    let canaries = canaries().into_iter();
    let canaries = canaries.map(|(scenario, wrap)| case(scenario, true, wrap));
    let crash = case("crash", false, effort.wrap);
    canaries.chain([crash]).collect()
}

/// A system whose volume refuses space.
pub fn of_short<S: System + 'static>(
    name: &str,
    size: Size,
    make: impl Fn(Arc<Refusals>) -> S + Send + Sync + 'static,
) -> Case {
    let effort = Effort {
        // Few operations ask for space.
        ops_max: 3 * size.ops_max,
        points: 2,
        depth_max: 1,
        ..Effort::default()
    };
    Case::new(format!("{name}/nospace"), false, move |seed| {
        let stats = nospace::explore(&make, seed, effort, size.faults / 2)?;
        Ok(vec![
            ("asked for space", stats.asked),
            ("runs", stats.runs),
            ("refused", stats.refused),
            ("told", stats.told),
            ("images", stats.crashes.images),
        ])
    })
}

fn canaries() -> [(&'static str, crash::Wrap); 2] {
    [
        ("canary-ignores-syncs", |device| {
            Liar::wrap(device, Lie::IgnoresSyncs)
        }),
        ("canary-loses-writes", |device| {
            Liar::wrap(device, Lie::LosesWrites)
        }),
    ]
}

fn crash_numbers<S: System>(system: &S, seed: u64, effort: Effort) -> Result<Numbers, String> {
    let stats = crash::explore(system, seed, effort)?;
    Ok(vec![
        ("operations", stats.ops),
        ("refused", stats.refused),
        ("syncs", stats.syncs),
        ("images", stats.images),
        ("further lives", stats.lives),
    ])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn panicking() -> Case {
        Case::new("panics".to_owned(), false, |_| panic!("on purpose"))
    }
}
