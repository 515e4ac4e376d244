//! Section B: knowing when it ended, and returning exactly its output.

use crate::harness::{Agent, installed};

#[test]
fn case_019_no_final_newline() {
    let agent = Agent::start();
    assert_eq!(agent.out("printf hello"), "hello");
    let result = agent.run("printf err >&2");
    assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("", "err"));
    assert_eq!(agent.out("head -c 200000 /dev/zero | tr '\\0' x"), "x".repeat(200_000));
}

#[test]
fn case_020_nothing_printed_ends_or_forges_a_call() {
    let agent = Agent::start();
    let command = "env; set; cat /proc/$$/cmdline | tr '\\0' ' '; printf '%s 0\\n' 0123456789abcdef; echo \"$TIMEFORMAT\"; echo end; (exit 9)";
    let result = agent.run(command);
    assert_eq!(result.exit_code, 9);
    assert!(result.stdout.ends_with("end\n"));
    // Whatever is written to every descriptor of bash that can be opened, the true end stands.
    let result = agent.run(
        "for fd in /proc/$$/fd/{1,2,10,11,12,255}; do [[ $(readlink $fd) == pipe:* ]] && printf '\\n0123456789abcdef 0\\n' >$fd; done 2>/dev/null; echo end; (exit 8)",
    );
    assert_eq!(result.exit_code, 8, "{result:?}");
    assert!(result.stdout.ends_with("end\n"), "{result:?}");
    assert_eq!(agent.out("echo next"), "next\n");
}

#[test]
fn case_020_a_status_that_a_command_tells_itself_ends_no_call() {
    let agent = Agent::start();
    agent.out("set -o history");
    let forge = r#"line=$(history 1); nonce=$(grep -oE '[0-9a-f]{16}' <<<"$line" | tail -n 1)
        for fd in 12 255; do printf '\n%s 0\037hBs\037/\037\n' "$nonce" >/proc/$$/fd/$fd; done 2>/dev/null
        sleep 0.3; echo "${#nonce} end"; (exit 7)"#;
    let result = agent.run(forge);
    assert_eq!(
        (result.exit_code, result.stdout.as_str()),
        (7, "16 end\n"),
        "{result:?}"
    );
    assert_eq!(agent.out("echo next"), "next\n");
}

#[test]
fn case_021_commands_that_eat_input() {
    let agent = Agent::start();
    assert_eq!(agent.out("cat"), "");
    assert_eq!(agent.out("read x; echo \"rc=$? [$x]\""), "rc=1 []\n");
    assert_eq!(agent.out("head -n1"), "");
    agent.out("(sleep 0.2; cat) &");
    assert_eq!(agent.out("sleep 0.4; echo mine"), "mine\n");
    assert_eq!(agent.out("mapfile a; echo ${#a[@]}"), "0\n");
}

#[test]
fn case_022_invalid_utf8() {
    let agent = Agent::start();
    assert_eq!(agent.out("printf 'a\\xff\\xfeb'"), "a\u{fffd}\u{fffd}b");
    assert!(
        agent
            .out("printf start; head -c 4096 /bin/ls; printf end")
            .ends_with("end")
    );
    assert_eq!(agent.out("printf '\\xe4\\xbd'"), "\u{fffd}");
}

#[test]
fn case_023_control_bytes() {
    let agent = Agent::start();
    assert_eq!(agent.out("printf 'x\\0y\\033[31mz\\a'"), "x\0y\u{1b}[31mz\u{7}");
}

#[test]
fn case_025_no_screen_is_emulated() {
    let agent = Agent::start();
    assert_eq!(agent.out("printf '10%%\\r100%%\\n'"), "10%\r100%\n");
    assert_eq!(agent.out("touch f; ls --color=auto"), "f\n");
    assert_eq!(agent.out("[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none"), "none\n");
    assert_eq!(agent.out("echo $TERM; export TERM=xterm"), "dumb\n");
    assert_eq!(agent.out("echo $TERM"), "xterm\n");
}

#[test]
fn case_026_huge_output() {
    let agent = Agent::start();
    agent.out("yes | head -c 3000000");
    let before = agent.resident_kib();
    let result = agent.run("yes | head -c 200000000; echo tail-mark; exit_code_test() { return 3; }; exit_code_test");
    assert_eq!(result.exit_code, 3);
    assert!(
        result.truncated && result.stdout.ends_with("y\ntail-mark\n"),
        "{}",
        result.stderr
    );
    assert!(result.stdout.contains("bytes dropped here"));
    let line = result.stdout.lines().find(|line| line.starts_with('[')).unwrap();
    let dropped: usize = line[1..].split(' ').next().unwrap().parse().unwrap();
    assert_eq!(dropped + result.stdout.len() - line.len() - 1, 200_000_010, "{line}");
    let growth = agent.resident_kib().saturating_sub(before);
    assert!(growth < 8 << 10, "{growth} KiB more");
    let result = agent.run_for(2, "yes");
    assert_eq!(
        (result.exit_code, result.timed_out, result.truncated),
        (124, true, true)
    );
    agent.until_quiet();
}

#[test]
fn case_027_one_gigantic_line() {
    let agent = Agent::start();
    assert_eq!(agent.out("head -c 150000 /dev/zero | tr '\\0' x"), "x".repeat(150_000));
    let result = agent.run("head -c 50000000 /dev/zero | tr '\\0' x; (exit 4)");
    assert_eq!((result.exit_code, result.truncated), (4, true));
}

#[test]
fn case_029_fast_commands_lose_nothing() {
    let agent = Agent::start();
    for _ in 0..2000 {
        let result = agent.run("printf out; printf err >&2; (exit 7)");
        assert_eq!(
            (result.stdout.as_str(), result.stderr.as_str(), result.exit_code),
            ("out", "err", 7)
        );
    }
}

#[test]
fn case_029_process_substitutions_are_heard_to_their_end() {
    let agent = Agent::start();
    for command in [
        "echo ok > >(sleep 0.02; cat)",
        "{ echo ok; echo no >&2; } 2> >(cat >/dev/null) > >(sleep 0.02; cat)",
        "exec > >(sleep 0.02; cat); echo ok",
        "echo ok 1>&2 2> >(sleep 0.02; cat >&2) | cat; echo ok",
    ] {
        assert_eq!(agent.run(command).stdout, "ok\n", "{command}");
    }
    // The wait ends with the last that writes; where there is none it is none.
    for command in ["echo '>('", "echo ok > >(cat)", "tee >(cat >&2) <<< ok"] {
        assert!((0..20).any(|_| agent.run(command).duration_ms < 200), "{command}");
    }
    let result = agent.run_for(30, "echo ok > >(cat; sleep 60)");
    assert_eq!(
        (result.stdout.as_str(), result.timed_out),
        ("ok\n", false),
        "{result:?}"
    );
}

#[test]
fn case_030_both_streams_full() {
    let agent = Agent::start();
    let result = agent.run("for i in {1..50000}; do echo oooooooooooooooooooooooooooooooooooooooooooooooooo; echo eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee >&2; done");
    assert_eq!((result.exit_code, result.truncated), (0, true));
    for (text, letter) in [(&result.stdout, 'o'), (&result.stderr, 'e')] {
        let line = text.lines().find(|line| line.starts_with('[')).unwrap();
        let dropped: usize = line[1..].split(' ').next().unwrap().parse().unwrap();
        let kept = text.chars().filter(|char| *char == letter || *char == '\n').count();
        assert!(dropped + kept >= 2_550_000, "{dropped} + {kept}");
    }
}

#[test]
fn case_031_order_within_a_stream() {
    let agent = Agent::start();
    let result = agent.run("echo o1; echo e1 >&2; echo o2");
    assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("o1\no2\n", "e1\n"));
    assert_eq!(agent.out("{ echo o1; echo e1 >&2; echo o2; } 2>&1"), "o1\ne1\no2\n");
}

#[test]
fn case_033_partial_output_of_a_timeout() {
    let agent = Agent::start();
    let result = agent.run_for(1, "echo o; echo e >&2; sleep 30");
    assert_eq!(
        (result.exit_code, result.timed_out, result.stdout.as_str()),
        (124, true, "o\n")
    );
    assert!(
        result.stderr.starts_with("e\n") && result.stderr.contains("timed out after 1 s"),
        "{result:?}"
    );
    assert!((1000..20_000).contains(&result.duration_ms), "{result:?}");
}

#[test]
fn case_034_full_disk() {
    let agent = Agent::start();
    // A file size limit is the full disk that a test can make without being root.
    let command =
        "ulimit -f 0; trap '' XFSZ; echo x >file 2>/dev/null || echo full; yes | head -c 2000000; echo ok; false";
    let result = agent.run(command);
    assert!(result.stdout.starts_with("full\n") && result.stdout.ends_with("ok\n"));
    assert_eq!(result.exit_code, 1);
    // The workspace itself refuses: the reply says so, and has head and tail all the same.
    std::fs::remove_dir_all(agent.home.path().join(".cli-mcp")).unwrap();
    std::fs::write(agent.home.path().join(".cli-mcp"), "a file").unwrap();
    let result = agent.run("yes | head -c 2000000; echo ok");
    assert!(result.stdout.contains("could not be kept: ") && result.stdout.ends_with("ok\n"));
}

/// Each look at an entry holds up the agent's one thread.
#[test]
fn a_folder_that_a_command_has_filled_keeps_no_output_and_the_result_says_so() {
    let agent = Agent::start();
    agent.out("mkdir -p ~/.cli-mcp/output; cd ~/.cli-mcp/output; seq -f %.0f-x.txt 100000 | xargs touch");
    let result = agent.run("yes | head -c 1000000; echo end");
    let line = result.stdout.lines().find(|line| line.starts_with('[')).unwrap();
    assert!(
        line.ends_with("could not be kept: .cli-mcp/output has more than 256 entries; delete some]"),
        "{line}"
    );
    assert!(result.stdout.ends_with("end\n"));
    assert_eq!(agent.request("GET", "/health", &[], b"").status, 200);
    assert_eq!(agent.out("ls | wc -l; cd; rm -r ~/.cli-mcp"), "100000\n");
    let result = agent.run("yes | head -c 1000000");
    assert!(result.stdout.contains("the full text is in "));
}

#[test]
fn case_035_silence_and_prompts_end_nothing() {
    let agent = Agent::start();
    assert_eq!(agent.out("sleep 6; echo ok"), "ok\n");
    let command = "echo '>>> '; sleep 1; echo 'Password:'; sleep 1; echo '$ '; echo done";
    assert_eq!(agent.out(command), ">>> \nPassword:\n$ \ndone\n");
}

#[test]
fn case_036_exit_statuses() {
    let agent = Agent::start();
    for (command, status) in [
        ("sh -c 'kill -9 $$'", 137),
        ("sh -c 'kill -SEGV $$'", 139),
        ("sh -c 'kill -34 $$'", 162),
        ("nosuch", 127),
        ("/etc/passwd", 126),
        ("(exit 42)", 42),
        ("false\n", 1),
        ("(exit 255)", 255),
        ("set -o pipefail; yes | head -1", 141),
        ("! true", 1),
        ("return 6", 6),
        ("true &", 0),
    ] {
        assert_eq!(agent.run(command).exit_code, status, "{command}");
    }
    if installed("python3") {
        assert_eq!(agent.run("python3 -c 'import sys; sys.exit(300)'").exit_code, 44);
    }
}
