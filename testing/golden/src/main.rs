//! `stitch-golden`: writes what tests and fuzzers begin with.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use stitch_format::superblock::VERSION;
use stitch_golden::hostile::ENTRIES;
use stitch_golden::store::{self, Clean};
use stitch_golden::{image, sample, seeds};

const USAGE: &str = "\
stitch-golden images           makes the images of the current version of the format
stitch-golden corpus FOLDER    valid records of every kind, as a fuzzer's first corpus
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["images"] => images(),
        ["corpus", folder] => corpus(Path::new(folder)),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stitch-golden: {error}");
            ExitCode::FAILURE
        }
    }
}

fn images() -> Result<(), Box<dyn Error>> {
    let (major, minor) = VERSION;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("images");
    for (clean, kind) in [
        (Clean::Closed, "closed"),
        (Clean::Killed, "killed"),
        (Clean::Closed, "handles-closed"),
        (Clean::Killed, "handles-killed"),
        (Clean::Closed, "instances-closed"),
        (Clean::Killed, "instances-killed"),
        (Clean::Closed, "allocated-closed"),
        (Clean::Killed, "allocated-killed"),
        (Clean::Closed, "shared-closed"),
        (Clean::Killed, "shared-killed"),
        (Clean::Closed, "pins-closed"),
        (Clean::Killed, "pins-killed"),
        (Clean::Closed, "scopes-closed"),
        (Clean::Killed, "scopes-killed"),
        (Clean::Closed, "ranges-closed"),
        (Clean::Killed, "ranges-killed"),
        (Clean::Closed, "branches-closed"),
        (Clean::Killed, "branches-killed"),
        (Clean::Closed, "narrowed-closed"),
        (Clean::Killed, "narrowed-killed"),
        (Clean::Closed, "shifts-closed"),
        (Clean::Killed, "shifts-killed"),
        (Clean::Closed, "clones-closed"),
        (Clean::Killed, "clones-killed"),
        (Clean::Killed, "rollback-killed"),
        (Clean::Killed, "rollback-in-clone-killed"),
    ] {
        let device = match kind.split_once('-') {
            Some(("instances", _)) => sample::make_instances(clean)?,
            Some(("shared", _)) => sample::make_shared(clean)?,
            Some(("pins", _)) => sample::make_pins(clean)?,
            Some(("scopes", _)) => sample::make_scopes(clean)?,
            Some(("ranges", _)) => sample::make_ranges(clean)?,
            Some(("rollback", end)) => sample::make_rollback(end.starts_with("in-clone"))?,
            Some(("clones", _)) => sample::make_clones(clean)?,
            Some(("branches", _)) => sample::make_branches(clean)?,
            Some(("narrowed", _)) => sample::make_narrowed(clean)?,
            Some(("shifts", _)) => sample::make_shifts(clean)?,
            Some(("handles", _)) => sample::make_with_back_rows(clean)?,
            Some(_) => sample::make_allocated(clean)?,
            None => sample::make(clean)?,
        };
        let path = folder.join(format!("{major}.{minor}-{kind}.img"));
        std::fs::write(&path, image::pack(&device))?;
        let tree = store::exercise(&device)?;
        std::fs::write(path.with_extension("tree"), store::text(&tree))?;
        println!("{}", path.display());
    }
    Ok(())
}

fn corpus(folder: &Path) -> Result<(), Box<dyn Error>> {
    for entry in ENTRIES {
        let place = folder.join(entry.name);
        std::fs::create_dir_all(&place)?;
        for (index, bytes) in seeds::of(entry.name).iter().enumerate() {
            std::fs::write(place.join(format!("seed-{index}")), bytes)?;
        }
    }
    Ok(())
}
