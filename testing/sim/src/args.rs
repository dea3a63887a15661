//! The simulator's command line.

use std::time::Duration;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Args {
    /// First seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u64,
    /// Time after which no new seed begins.
    pub limit: Option<Duration>,
    /// Only cases whose name contains this.
    pub case: String,
    /// Threads.
    pub jobs: u64,
}

/// What `--help` prints.
pub const USAGE: &str = "\
stitch-sim: power cuts, device errors and damage, simulated from seeds

  --seed N        replay seed N alone (with --seeds: begin at N)
  --seeds N       run N seeds of every case (default 2000)
  --seconds S     begin no new seed after S seconds
  --minutes M     the same in minutes
  --case NAME     only cases whose name contains NAME, such as kv/crash
  --jobs N        threads (default 2)
  --list          names of the cases
";

impl Args {
    /// From the words after the program's name.
    ///
    /// # Errors
    /// Which word is wrong.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = Self {
            seed: 0,
            seeds: 0,
            limit: None,
            case: String::new(),
            jobs: 2,
        };
        let mut only_one = false;
        let mut words = words;
        while let Some(word) = words.next() {
            let value = words
                .next()
                .ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--seed" => {
                    args.seed = number(&word, &value)?;
                    only_one = true;
                }
                "--seeds" => args.seeds = number(&word, &value)?,
                "--seconds" => args.limit = Some(Duration::from_secs(number(&word, &value)?)),
                "--minutes" => {
                    args.limit = Some(Duration::from_secs(
                        number(&word, &value)?.saturating_mul(60),
                    ));
                }
                "--case" => args.case = value,
                "--jobs" => args.jobs = number(&word, &value)?.max(1),
                _ => return Err(format!("unknown option {word}")),
            }
        }
        if args.seeds == 0 {
            args.seeds = match (only_one, args.limit) {
                (true, _) => 1,
                (false, Some(_)) => u64::MAX / 2,
                (false, None) => 2000,
            };
        }
        Ok(args)
    }
}

fn number(word: &str, value: &str) -> Result<u64, String> {
    value
        .parse()
        .map_err(|_| format!("{word} needs a number, not {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn one_seed_is_replayed_alone() {
        let args = parse("--seed 42 --case kv/crash").unwrap();
        assert_eq!(
            (args.seed, args.seeds, args.case.as_str()),
            (42, 1, "kv/crash")
        );
        assert_eq!(parse("--seed 42 --seeds 7").unwrap().seeds, 7);
    }

    #[test]
    fn time_bounds_the_seeds() {
        let args = parse("--minutes 2").unwrap();
        assert_eq!(args.limit, Some(Duration::from_secs(120)));
        assert!(args.seeds > 1 << 40);
        assert_eq!(parse("").unwrap().seeds, 2000);
    }

    #[test]
    fn wrong_words_are_named() {
        assert!(parse("--seed").unwrap_err().contains("--seed"));
        assert!(parse("--seed x").unwrap_err().contains("\"x\""));
        assert!(parse("--sed 1").unwrap_err().contains("--sed"));
    }
}
