//! Section A: getting the command to bash unharmed.

use serde_json::json;

use crate::harness::{Agent, Setup};

#[test]
fn case_001_unterminated_quote() {
    let agent = Agent::start();
    agent.out("export K=1; cd /usr");
    for command in ["echo 'abc", "echo \"abc", "echo `abc", "x=$(echo"] {
        let result = agent.run(command);
        assert_eq!(result.exit_code, 2, "{command}: {result:?}");
        assert!(
            result.stderr.contains("unexpected EOF while looking for matching"),
            "{result:?}"
        );
        assert_eq!(agent.out("echo $K $PWD"), "1 /usr\n");
    }
}

#[test]
fn case_002_here_document_without_its_end() {
    let agent = Agent::start();
    for command in [
        "cat <<EOF\nhello",
        "cat <<EOF\nhello\n  EOF",
        "cat <<EOF\nhello\nEOF \n",
    ] {
        let result = agent.run(command);
        assert!(result.stdout.starts_with("hello\n"), "{result:?}");
        assert_eq!(result.exit_code, 0, "{result:?}");
        assert!(result.stderr.contains("delimited by end-of-file"), "{result:?}");
        assert_eq!(agent.out("echo next"), "next\n");
    }
}

#[test]
fn case_003_here_document_ending_at_the_last_byte() {
    let agent = Agent::start();
    agent.out("cat > h <<'EOF'\n  keep  $X `y`\nEOF");
    assert_eq!(std::fs::read(agent.home.path().join("h")).unwrap(), b"  keep  $X `y`\n");
}

#[test]
fn case_005_nothing_is_parsed_or_joined() {
    let agent = Agent::start();
    assert_eq!(agent.out("echo t 2>&1 | cat"), "t\n");
    assert_eq!(
        agent.out("true | true; { echo in; }; [[ PID=$$ == PID=[0-9]* ]]; echo $?"),
        "in\n0\n"
    );
    assert_eq!(
        agent.out(r#"printf '%s|' "a  b" 'c$d' \e '{}' '*'"#),
        "a  b|c$d|e|{}|*|"
    );
}

#[test]
fn case_006_null_input_for_the_whole_command() {
    let agent = Agent::start();
    assert_eq!(agent.out("echo hello | cat"), "hello\n");
    assert_eq!(agent.out("cat <<E\nx\nE"), "x\n");
    assert_eq!(agent.out("sort <<< b"), "b\n");
    assert_eq!(agent.out("cat"), "");
    assert_eq!(
        agent.out("while read -r line; do echo $line; done < <(seq 2)"),
        "1\n2\n"
    );
}

#[test]
fn case_007_comments_and_trailing_backslashes() {
    let agent = Agent::start();
    assert_eq!(agent.out("echo hi # note"), "hi\n");
    assert!(agent.out("echo hi \\").starts_with("hi"));
    assert_eq!(agent.out("# nothing"), "");
    assert_eq!(agent.out("   "), "");
    assert_eq!(agent.out(""), "");
    assert_eq!(agent.out("\n\n\t\n"), "");
    assert_eq!(agent.out("echo next"), "next\n");
}

#[test]
fn case_008_closers_that_close_nothing() {
    let agent = Agent::start();
    agent.out("K=1");
    for closer in ["}", ")", "fi", "done", "esac", ";;"] {
        let result = agent.run(&format!("echo a\n{closer}\necho b"));
        assert_eq!(
            (result.stdout.as_str(), result.exit_code),
            ("a\n", 2),
            "{closer}: {result:?}"
        );
        assert!(result.stderr.contains("syntax error"), "{result:?}");
        assert_eq!(agent.out("echo $K"), "1\n");
    }
}

#[test]
fn case_009_syntax_error_after_good_lines() {
    let agent = Agent::start();
    let result = agent.run("echo one\necho two\nfi\necho four");
    assert_eq!((result.stdout.as_str(), result.exit_code), ("one\ntwo\n", 2));
    assert!(result.stderr.contains("line 3: syntax error"), "{result:?}");
    assert_eq!(agent.out("echo alive"), "alive\n");
}

#[test]
fn case_011_scripts_of_many_lines() {
    let agent = Agent::start();
    assert_eq!(agent.out("f() {\n echo $1\n}\nfor i in 1 2; do\n f $i\ndone"), "1\n2\n");
    assert_eq!(agent.out("a=1 \\\n b=2 env | grep -c '^[ab]='"), "2\n");
    assert_eq!(
        agent.out("shopt -s extglob\ncase aab in +(a)b) echo yes;; esac"),
        "yes\n"
    );
    assert_eq!(agent.run("true\nfalse").exit_code, 1);
}

#[test]
fn case_012_carriage_returns_are_bytes() {
    let agent = Agent::start();
    assert_eq!(agent.out("echo hi\r\necho there\r\n"), "hi\r\nthere\r\n");
    let result = agent.run("cat <<EOF\r\nx\r\nEOF\r\n");
    assert_eq!((result.stdout.as_str(), result.exit_code), ("x\r\n", 0), "{result:?}");
    assert_eq!(agent.run("true\r").exit_code, 127);
}

#[test]
fn case_013_a_nul_byte_is_refused() {
    let agent = Agent::start();
    let answer = agent.exec_body(&json!({"command": "touch ran; echo a\0b"}));
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("NUL"), "{answer:?}");
    assert_eq!(agent.out("ls"), "");
}

#[test]
fn case_015_long_lines() {
    let agent = Agent::start();
    let text = "x".repeat(5000);
    assert_eq!(agent.out(&format!("echo '{text}'")), format!("{text}\n"));
    let text = "y".repeat(3 << 20);
    assert_eq!(
        agent.out(&format!("x='{text}'; echo ${{#x}}")),
        format!("{}\n", 3 << 20)
    );
}

#[test]
fn case_016_a_command_larger_than_a_pipe_beside_output_larger_than_a_pipe() {
    let agent = Agent::start();
    let loud = "head -c 100000 /dev/zero | tr '\\0' o; head -c 100000 /dev/zero | tr '\\0' e >&2\n";
    let padding = format!(": {}\n", "p".repeat(90)).repeat(3300);
    let result = agent.run(&format!("{loud}{padding}{loud}echo end"));
    assert_eq!(result.exit_code, 0, "{}", result.stderr);
    assert!(result.stdout.ends_with("oend\n"));
    assert_eq!((result.stdout.len(), result.stderr.len()), (200_004, 200_000));
}

#[test]
fn case_017_no_history_expansion() {
    let agent = Agent::start();
    assert_eq!(agent.out("echo \"P@ss!word !x !!\""), "P@ss!word !x !!\n");
    assert_eq!(agent.out("echo !$ !1 ^a^b"), "!$ !1 ^a^b\n");
    assert_eq!(
        agent.out("set -o | grep '^history '").split_whitespace().last(),
        Some("off")
    );
    assert_eq!(agent.out("ls -A"), "");
}

#[test]
fn case_018_no_place_for_temporary_files() {
    let agent = Setup::new().env("TMPDIR", "/proc").start();
    let result = agent.run("wc -c <<< \"$(head -c 200000 /dev/zero | tr '\\0' a)\"");
    assert!(result.exit_code != 0 || result.stdout == "200001\n", "{result:?}");
    assert_eq!(agent.out("echo next"), "next\n");
}
