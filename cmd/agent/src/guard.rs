//! What commands may not do to the agent and its holder, as a seccomp filter that bash is started under and hands on to
//! all that it starts. Commands run as the agent's own user, who may signal its processes, lower their limits for good and
//! take their processor away (ADR 9).

use nix::libc::{self, sock_filter};

/// One kind of processor and calling convention.
struct Abi {
    /// `AUDIT_ARCH_*` of `linux/audit.h`.
    architecture: u32,
    /// The numbers of its system calls from here on are another convention's.
    numbers_end: u32,
    /// Its numbers of the calls in [`REFUSALS`].
    numbers: [u32; REFUSALS.len()],
}

/// When a system call is refused.
#[derive(Clone, Copy)]
enum When {
    /// One of these arguments is a protected process, or its process group.
    Names(&'static [u32]),
    /// The same for its second argument; or its first has this value, which stands for all processes of a user.
    NamesOrAll(u32),
    /// Always, as by a kernel that does not have it: all programs know an older way.
    Always,
}

/// `PRIO_USER` of `setpriority(2)`, and `IOPRIO_WHO_USER` of `ioprio_set(2)`.
const PRIO_USER: u32 = 2;
const IOPRIO_WHO_USER: u32 = 3;

/// What is refused: `kill`, `tkill`, `tgkill`, `rt_sigqueueinfo`, `rt_tgsigqueueinfo`, `pidfd_send_signal`, which also takes a
/// folder of `/proc` for a process; `prlimit64`, `ptrace`, `setpriority`, `ioprio_set`, `sched_setparam`,
/// `sched_setscheduler`, `sched_setaffinity`, `sched_setattr`.
const REFUSALS: [When; 14] = [
    When::Names(&[0]),
    When::Names(&[0]),
    When::Names(&[0, 1]),
    When::Names(&[0]),
    When::Names(&[0, 1]),
    When::Always,
    When::Names(&[0]),
    When::Names(&[1]),
    When::NamesOrAll(PRIO_USER),
    When::NamesOrAll(IOPRIO_WHO_USER),
    When::Names(&[0]),
    When::Names(&[0]),
    When::Names(&[0]),
    When::Names(&[0]),
];

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const NATIVE: [u32; REFUSALS.len()] = [
    libc::SYS_kill as u32,
    libc::SYS_tkill as u32,
    libc::SYS_tgkill as u32,
    libc::SYS_rt_sigqueueinfo as u32,
    libc::SYS_rt_tgsigqueueinfo as u32,
    libc::SYS_pidfd_send_signal as u32,
    libc::SYS_prlimit64 as u32,
    libc::SYS_ptrace as u32,
    libc::SYS_setpriority as u32,
    libc::SYS_ioprio_set as u32,
    libc::SYS_sched_setparam as u32,
    libc::SYS_sched_setscheduler as u32,
    libc::SYS_sched_setaffinity as u32,
    libc::SYS_sched_setattr as u32,
];

/// What programs of this machine may speak. Any other convention is refused: the 32-bit one of aarch64, which few of its
/// processors still have, and the x32 one, whose numbers follow the native ones and which no distribution uses.
#[cfg(target_arch = "x86_64")]
const ABIS: &[Abi] = &[
    Abi {
        architecture: 0xc000_003e,
        numbers_end: 0x4000_0000,
        numbers: NATIVE,
    },
    Abi {
        architecture: 0x4000_0003,
        numbers_end: u32::MAX,
        numbers: [37, 238, 270, 178, 335, 424, 340, 26, 97, 289, 154, 156, 241, 351],
    },
];
#[cfg(target_arch = "aarch64")]
const ABIS: &[Abi] = &[Abi {
    architecture: 0xc000_00b7,
    numbers_end: u32::MAX,
    numbers: NATIVE,
}];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ABIS: &[Abi] = &[];

/// Where `struct seccomp_data` has the number, the architecture, and the low half of an argument: all that the kernel reads
/// of a process id. Both machines are little-endian.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

const fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

const fn jump(test: u32, value: u32, then: u8, otherwise: u8) -> sock_filter {
    instruction(libc::BPF_JMP | test | libc::BPF_K, value, then, otherwise)
}

const fn answer(verdict: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, verdict, 0, 0)
}

const fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

const ALLOWED: sock_filter = answer(libc::SECCOMP_RET_ALLOW);
const REFUSED: sock_filter = answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
const UNKNOWN: sock_filter = answer(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);

/// The filter that protects these processes. Empty where the agent knows no system calls of the machine.
///
/// Process ids are those of the agent's namespace: a namespace below it numbers anew, and shows no process from above.
#[must_use]
pub fn filter(protected: &[i32]) -> Vec<sock_filter> {
    // A negative number is the process group; the one below -1 that is every process leaves out the first by itself.
    let names: Vec<u32> = protected
        .iter()
        .flat_map(|pid| [*pid, -pid])
        .filter(|name| *name != 0 && *name != -1)
        .map(i32::cast_unsigned)
        .collect();
    let mut program = Vec::new();
    for abi in ABIS {
        let rules: Vec<sock_filter> = abi
            .numbers
            .into_iter()
            .zip(REFUSALS)
            .flat_map(|(number, when)| judge(number, when, &names))
            .collect();
        program.push(load(ARCHITECTURE));
        // Jumps by conditions reach 255 instructions; the way past all rules is longer.
        program.push(jump(libc::BPF_JEQ, abi.architecture, 1, 0));
        program.push(instruction(
            libc::BPF_JMP | libc::BPF_JA,
            u32::try_from(rules.len() + 4).unwrap_or(0),
            0,
            0,
        ));
        program.push(load(NUMBER));
        program.push(jump(libc::BPF_JGE, abi.numbers_end, 0, 1));
        program.push(UNKNOWN);
        program.extend(rules);
        program.push(ALLOWED);
    }
    if !program.is_empty() {
        program.push(UNKNOWN);
    }
    program
}

/// The instructions for one system call, with the number loaded: they leave it so for the next where it is another.
fn judge(number: u32, when: When, names: &[u32]) -> Vec<sock_filter> {
    let mut verdict = Vec::new();
    let compare = |verdict: &mut Vec<sock_filter>, index: u32, value: u32| {
        verdict.push(load(argument(index)));
        verdict.push(jump(libc::BPF_JEQ, value, 0, 1));
        verdict.push(REFUSED);
    };
    match when {
        When::Names(indices) => {
            for index in indices {
                for name in names {
                    compare(&mut verdict, *index, *name);
                }
            }
            verdict.push(ALLOWED);
        }
        When::NamesOrAll(all) => {
            compare(&mut verdict, 0, all);
            for name in names {
                compare(&mut verdict, 1, *name);
            }
            verdict.push(ALLOWED);
        }
        When::Always => verdict.push(UNKNOWN),
    }
    let mut instructions = vec![jump(
        libc::BPF_JEQ,
        number,
        0,
        u8::try_from(verdict.len()).unwrap_or(u8::MAX),
    )];
    instructions.extend(verdict);
    instructions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a filter as the kernel would.
    fn verdict(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 2]) -> u32 {
        let mut loaded = 0;
        let mut at = 0;
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { jt } else { jf });
            match u32::from(code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    loaded = match k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        16 => arguments[0] as u32,
                        24 => arguments[1] as u32,
                        _ => panic!("offset {k}"),
                    }
                }
                code if code == libc::BPF_JMP | libc::BPF_JA => at += k as usize,
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => at += jump(loaded == k),
                code if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K => at += jump(loaded >= k),
                code if code == libc::BPF_RET | libc::BPF_K => return k,
                code => panic!("code {code}"),
            }
        }
    }

    fn outcome(architecture: u32, number: u32, arguments: [u64; 2]) -> &'static str {
        match verdict(&filter(&[1, 7]), architecture, number, arguments) {
            libc::SECCOMP_RET_ALLOW => "allowed",
            other if other == REFUSED.k => "refused",
            other if other == UNKNOWN.k => "unknown",
            other => panic!("{other:x}"),
        }
    }

    #[test]
    fn only_what_names_a_protected_process_is_refused() {
        let native =
            |number: libc::c_long, arguments| outcome(ABIS[0].architecture, u32::try_from(number).unwrap(), arguments);
        let group = |pid: i32| u64::from((-pid).cast_unsigned());
        let high = 1 << 32;
        for (number, arguments, expected) in [
            (libc::SYS_kill, [1, 15], "refused"),
            (libc::SYS_kill, [high | 7, 19], "refused"),
            (libc::SYS_kill, [group(7), 19], "refused"),
            (libc::SYS_kill, [group(1), 15], "allowed"),
            (libc::SYS_kill, [0, 15], "allowed"),
            (libc::SYS_kill, [8, 15], "allowed"),
            (libc::SYS_tgkill, [1, 1], "refused"),
            (libc::SYS_tgkill, [9, 7], "refused"),
            (libc::SYS_tgkill, [9, 9], "allowed"),
            (libc::SYS_pidfd_send_signal, [9, 9], "unknown"),
            (libc::SYS_prlimit64, [1, 9], "refused"),
            (libc::SYS_prlimit64, [0, 7], "allowed"),
            (libc::SYS_ptrace, [16, 7], "refused"),
            (libc::SYS_ptrace, [7, 9], "allowed"),
            (libc::SYS_setpriority, [0, 1], "refused"),
            (libc::SYS_setpriority, [2, 0], "refused"),
            (libc::SYS_setpriority, [0, 0], "allowed"),
            (libc::SYS_ioprio_set, [3, 0], "refused"),
            (libc::SYS_sched_setattr, [7, 0], "refused"),
            (libc::SYS_read, [1, 7], "allowed"),
        ] {
            assert_eq!(native(number, arguments), expected, "{number} {arguments:?}");
        }
    }

    #[test]
    fn another_calling_convention_is_no_way_round() {
        for abi in ABIS {
            for number in abi.numbers {
                assert_ne!(outcome(abi.architecture, number, [7, 7]), "allowed", "{number}");
            }
        }
        assert_eq!(outcome(0x4000_0028, 37, [1, 15]), "unknown");
        #[cfg(target_arch = "x86_64")]
        assert_eq!(outcome(ABIS[0].architecture, 0x4000_0000 | 62, [1, 15]), "unknown");
    }
}
