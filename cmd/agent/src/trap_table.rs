//! The traps that a bash holds, as its memory shows them.
//!
//! Bash catches SIGINT for itself, so the kernel's view does not tell whether it has a trap for it, and it cannot be asked
//! before its list has gone on. It keeps one pointer a signal in an array, in every version: to the trap's text, none without
//! a trap, and 1 where the signal is ignored. The first is for EXIT. So the array begins where the one pointer is that leads
//! to the agent's own EXIT trap, which nobody else knows.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::script::LAST_WORDS;

const WORD: usize = size_of::<usize>();
/// More than the variables of any bash take.
const MAX_IMAGE: usize = 1 << 20;
/// What bash has traps for besides signals comes before and after these: `NSIG` is 65 on every Linux but MIPS.
const EXIT: usize = 0;
const DEBUG: usize = 65;
const ERR: usize = 66;
const RETURN: usize = 67;
/// What stands in the array for a signal that is ignored.
const IGNORED: usize = 1;

/// Where a bash keeps its traps.
#[derive(Clone, Debug)]
pub(crate) struct TrapTable {
    bash: i32,
    address: usize,
    exit_trap: Vec<u8>,
}

impl TrapTable {
    /// Finds the traps of a bash whose EXIT trap has this text. None where its memory may not be looked at, or does not tell.
    pub(crate) fn find(bash: i32, exit_trap: &str) -> Option<Self> {
        let memory = memory_of(bash)?;
        let image = fs::read_link(format!("/proc/{bash}/exe")).ok()?;
        let maps = fs::read_to_string(format!("/proc/{bash}/maps")).ok()?;
        let ranges = ranges(&maps, &image);
        let in_image = |pointer: usize| ranges.iter().any(|range| (range.begin..range.end).contains(&pointer));
        let mut found = None;
        for range in ranges.iter().filter(|range| range.writable) {
            let mut bytes = vec![0; (range.end - range.begin).min(MAX_IMAGE)];
            memory.read_exact_at(&mut bytes, range.begin as u64).ok()?;
            for (index, pointer) in words(&bytes).enumerate() {
                // The text was allocated.
                let may_be = pointer > IGNORED && !in_image(pointer);
                if may_be && leads_to(&memory, pointer, exit_trap.as_bytes()) {
                    let address = range.begin + index * WORD;
                    if found.replace(address).is_some() {
                        return None;
                    }
                }
            }
        }
        found.map(|address| Self {
            bash,
            address,
            exit_trap: exit_trap.into(),
        })
    }

    /// Whether an interrupt would run a trap of the user's at this moment: one for SIGINT, which its list would outlive, or of
    /// a command that may have set traps any that the end of its child runs.
    pub(crate) fn interrupt_runs_trap(&self, may_have_set_traps: bool) -> Option<bool> {
        let memory = memory_of(self.bash)?;
        let traps = |number| Some(self.entry(&memory, number)? > IGNORED);
        let of_its_end = || Some(traps(Signal::SIGCHLD as usize)? || traps(DEBUG)? || traps(ERR)? || traps(RETURN)?);
        Some(traps(Signal::SIGINT as usize)? || may_have_set_traps && of_its_end()?)
    }

    /// Whether a trap of the user's runs when the shell is ended by [`LAST_WORDS`].
    pub(crate) fn end_runs_trap(&self) -> Option<bool> {
        let memory = memory_of(self.bash)?;
        let is_own = leads_to(&memory, self.entry(&memory, EXIT)?, &self.exit_trap);
        Some(!is_own || self.entry(&memory, LAST_WORDS as usize)? > IGNORED)
    }

    fn entry(&self, memory: &File, number: usize) -> Option<usize> {
        let mut word = [0; WORD];
        let address = self.address + number * WORD;
        memory.read_exact_at(&mut word, address as u64).ok()?;
        Some(usize::from_ne_bytes(word))
    }
}

fn memory_of(pid: i32) -> Option<File> {
    File::open(format!("/proc/{pid}/mem")).ok()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let (words, _) = bytes.as_chunks::<WORD>();
    words.iter().map(|word| usize::from_ne_bytes(*word))
}

/// Whether a pointer leads to this text and its end.
fn leads_to(memory: &File, pointer: usize, text: &[u8]) -> bool {
    let mut there = vec![0; text.len() + 1];
    memory.read_exact_at(&mut there, pointer as u64).is_ok() && there.strip_suffix(&[0]) == Some(text)
}

/// A piece of a program in memory.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    begin: usize,
    end: usize,
    writable: bool,
}

/// The pieces of a program, by `proc_pid_maps(5)`; what it has no file for, its zeroed variables, comes right after them.
fn ranges(maps: &str, image: &Path) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for line in maps.lines() {
        let mut fields = line.splitn(6, ' ');
        let Some((begin, end)) = fields.next().and_then(|span| span.split_once('-')) else {
            continue;
        };
        let address = |text: &str| usize::from_str_radix(text, 16).ok();
        let (Some(begin), Some(end)) = (address(begin), address(end)) else {
            continue;
        };
        let writable = fields.next().is_some_and(|rights| rights.starts_with("rw"));
        let name = fields.nth(3).map_or("", str::trim);
        let continues = name.is_empty() && ranges.last().is_some_and(|last| last.end == begin);
        if continues || Path::new(name) == image {
            ranges.push(Range { begin, end, writable });
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_program_are_told_from_others() {
        let maps = "\
00400000-00401000 r--p 00000000 fe:00 821542                             /bin/a b (deleted)
00649000-00654000 rw-p 00249000 fe:00 821542                             /bin/a b (deleted)
00654000-00666000 rw-p 00000000 00:00 0 
00700000-00701000 rw-p 00000000 00:00 0 
00701000-00702000 rw-p 00000000 00:00 0                                  [heap]
00800000-00801000 rw-p 00000000 fe:00 7                                  /lib/x.so
00801000-00802000 rw-p 00000000 00:00 0 
";
        let range = |begin, end, writable| Range { begin, end, writable };
        assert_eq!(
            ranges(maps, Path::new("/bin/a b (deleted)")),
            [
                range(0x40_0000, 0x40_1000, false),
                range(0x64_9000, 0x65_4000, true),
                range(0x65_4000, 0x66_6000, true)
            ]
        );
    }
}
