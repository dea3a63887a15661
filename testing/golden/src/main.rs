//! `stitch-golden`: writes what tests and fuzzers begin with.

use std::path::Path;
use std::process::ExitCode;
use stitch_golden::hostile::ENTRIES;
use stitch_golden::seeds;

const USAGE: &str = "\
stitch-golden corpus FOLDER    valid records of every kind, as a fuzzer's first corpus
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
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

fn corpus(folder: &Path) -> std::io::Result<()> {
    for entry in ENTRIES {
        let place = folder.join(entry.name);
        std::fs::create_dir_all(&place)?;
        for (index, bytes) in seeds::of(entry.name).iter().enumerate() {
            std::fs::write(place.join(format!("seed-{index}")), bytes)?;
        }
    }
    Ok(())
}
