//! The mutating engine.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant, SystemTime};

/// Inputs of a run with a fixed seed.
const CASES: usize = 20_000;

/// The longest input, in bytes.
const LONGEST: usize = 4096;

/// The most inputs that are kept as seeds.
const MOST_SEEDS: usize = 2000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }
}

/// Prints the input when the check panics.
struct Blame<'a>(&'a str, &'a [u8]);

impl Drop for Blame<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: broken by {:?}", self.0, String::from_utf8_lossy(self.1));
        }
    }
}

fn mutate(random: &mut Random, corpus: &[Vec<u8>], dictionary: &[&str]) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(5) {
        let at = random.below(input.len() + 1);
        let end = (at + random.below(12)).min(input.len());
        match random.below(8) {
            0 | 1 => {
                let word = dictionary[random.below(dictionary.len())];
                input.splice(at..at, word.bytes());
            }
            2 => {
                let word = dictionary[random.below(dictionary.len())];
                input.splice(at..end, word.bytes());
            }
            3 => drop(input.drain(at..end)),
            4 => {
                let copy = input[at..end].to_vec();
                input.splice(at..at, copy);
            }
            5 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 if at < input.len() => input[at] = u8::try_from(random.below(256)).unwrap(),
            _ if at < input.len() => input[at] ^= 1 << random.below(8),
            _ => {}
        }
    }
    input.truncate(LONGEST);
    input
}

/// Tries inputs on `check`, which panics where an invariant is broken and otherwise says how the input ended.
pub(crate) fn run<Outcome: Hash>(name: &str, seeds: &[&str], dictionary: &[&str], check: impl Fn(&[u8]) -> Outcome) {
    let seconds: Option<u64> = std::env::var("FUZZ_SECONDS").ok().map(|text| text.parse().unwrap());
    let seed = match seconds {
        None => 1,
        Some(_) => SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .subsec_nanos()
            .into(),
    };
    let mut random = Random(seed);
    let mut corpus: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    let mut seen = HashSet::new();
    let mut try_one = |input: &[u8]| {
        let blame = Blame(name, input);
        let outcome = check(input);
        drop(blame);
        let mut hasher = DefaultHasher::new();
        outcome.hash(&mut hasher);
        seen.insert(hasher.finish())
    };
    for seed in corpus.clone() {
        try_one(&seed);
    }
    let started = Instant::now();
    let mut tried = 0_usize;
    let more = |tried: usize| match seconds {
        None => tried < CASES,
        Some(seconds) => !tried.is_multiple_of(1000) || started.elapsed() < Duration::from_secs(seconds),
    };
    while more(tried) {
        let input = mutate(&mut random, &corpus, dictionary);
        if try_one(&input) && corpus.len() < MOST_SEEDS {
            corpus.push(input);
        }
        tried += 1;
    }
    println!("{name}: {tried} inputs, {} kept as seeds", corpus.len());
}
