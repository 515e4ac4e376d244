//! The page that maps each case to its test: made from the tests' names, and kept true by a test.
//!
//! `UPDATE_SHELL_CASES=1 cargo test -p cli-mcp-agent --test shell_cases page` writes it anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Sections of the catalogue.
const SECTIONS: [(char, &str); 8] = [
    ('A', "Getting the command to bash unharmed"),
    ('B', "Knowing when it ended, and returning exactly its output"),
    ('C', "Commands that end, replace or freeze the shell"),
    ('D', "State that poisons the wrapper"),
    ('E', "Background jobs and timeouts"),
    ('F', "Programs that want a human"),
    ('G', "Server, concurrency, process hygiene"),
    ('H', "The wire"),
];

/// Section, number and subject of each case. Numbers that are not here were never given.
const CASES: [(char, u16, &str); 77] = [
    ('A', 1, "Unterminated quote"),
    ('A', 2, "Here-document whose terminator never comes"),
    (
        'A',
        3,
        "Correct heredoc whose last line is the delimiter (no newline after it)",
    ),
    (
        'A',
        5,
        "Command rewritten by tokenise-and-rejoin (pipes, `2>&1`, braces, `$`)",
    ),
    ('A', 6, "`/dev/null` stdin attached to the wrong element"),
    (
        'A',
        7,
        "Comment as the last thing; trailing backslash; only comments; empty/whitespace command",
    ),
    ('A', 8, "Unbalanced `}` / `)` / `fi` / `done` that closes the wrapper"),
    ('A', 9, "Syntax error after good lines"),
    ('A', 11, "Multi-line scripts, loops, functions, line continuations"),
    ('A', 12, "CRLF text"),
    ('A', 13, "NUL byte in the command"),
    ('A', 15, "Line longer than the tty canonical limit (PTY designs)"),
    (
        'A',
        16,
        "Write-side deadlock: command larger than a pipe buffer while bash is busy or blocked on output",
    ),
    ('A', 17, "History expansion"),
    ('A', 18, "Heredoc / here-string temp file on read-only or full TMPDIR"),
    ('B', 19, "Output without a final newline"),
    (
        'B',
        20,
        "Output that contains the marker / prompt / sentinel, or a forged one",
    ),
    ('B', 21, "Command that eats stdin"),
    ('B', 22, "Invalid UTF-8 and binary output"),
    ('B', 23, "NUL and control bytes in output"),
    ('B', 25, "ANSI colour, cursor movement, `\\r` progress bars"),
    ('B', 26, "Huge output (100 MB+, endless)"),
    ('B', 27, "One gigantic line"),
    ('B', 29, "Fast command, output lost"),
    ('B', 30, "Both streams full at once"),
    ('B', 31, "stdout/stderr interleaving"),
    ('B', 33, "Partial output on timeout"),
    ('B', 34, "Disk full / quota on the capture filesystem"),
    ('B', 35, "Silence taken for \"stuck\" or text taken for a prompt"),
    ('B', 36, "Exit status lost or wrong through signals"),
    ('C', 38, "`exit N`"),
    ('C', 40, "Dead shell that stays dead"),
    ('C', 42, "`set -e` (sticky)"),
    ('C', 43, "`set -u` and an unset variable; `${VAR:?msg}`"),
    ('C', 44, "`exec cmd`, failing `exec`"),
    ('C', 45, "`kill -9 $$`, `kill $$`, `kill -- -$$`, `kill 0`"),
    ('C', 46, "`kill -STOP $$`, Ctrl-Z-like stops"),
    ('C', 48, "OOM: child or shell?"),
    ('C', 49, "Restart forgets start-up setup"),
    ('D', 51, "User functions or aliases named like builtins"),
    ('D', 53, "`set -x` / `set -v`"),
    ('D', 54, "DEBUG / ERR / RETURN / EXIT traps"),
    ('D', 55, "PROMPT_COMMAND, PS1, PS0, PS2, PS4"),
    ('D', 58, "cwd deleted or unreadable"),
    (
        'D',
        59,
        "Scoping: `declare`, `local`, `declare -A`, `readonly`, `export -f`",
    ),
    ('D', 61, "Subshell wrapping loses state"),
    ('D', 62, "Aliases"),
    ('D', 64, "`set -m` by the user"),
    ('E', 65, "`cmd &` keeps the pipe open"),
    ('E', 67, "Background output bleeding into the next call"),
    ('E', 68, "Jobs survive between calls and can be managed"),
    ('E', 69, "Timeout must kill the whole tree of this command"),
    ('E', 71, "Timeout must not kill earlier background jobs"),
    ('E', 72, "Nothing of the timed-out command may run afterwards"),
    ('E', 73, "Timeout keeps cwd, env, functions"),
    ('E', 76, "Kill messages of the old call in the next call's stderr"),
    ('E', 77, "`wait` for a job that never ends"),
    ('E', 78, "Timeout parameter handling"),
    ('F', 80, "git editor (commit, rebase, merge)"),
    ('F', 81, "Pagers"),
    ('F', 82, "`/dev/tty` users: ssh, sudo, gpg, `read </dev/tty`"),
    ('F', 83, "Full-screen and REPL programs"),
    ('F', 84, "apt/debconf"),
    ('F', 85, "kubectl/oc: `exec -it`, `edit`, `logs -f`, `port-forward &`"),
    ('G', 87, "Queue time versus timeout"),
    ('G', 89, "Zombies when the agent is PID 1 / subreaper"),
    ('G', 92, "fd, temp file and memory leaks over long sessions"),
    ('G', 95, "Agent secrets visible to commands"),
    ('G', 96, "Locale"),
    ('G', 98, "Shutdown while a command runs"),
    ('G', 99, "Request edge cases"),
    ('H', 101, "Streaming"),
    ('H', 102, "Cancel"),
    ('H', 103, "Assignment"),
    ('H', 104, "Who may call"),
    ('H', 105, "Spill folder"),
    ('H', 106, "The client leaves"),
];

/// A test as its source names it.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    file: String,
    name: String,
}

/// Tests by the case they are named for; those without a number come under `None`.
fn tests(folder: &Path) -> BTreeMap<Option<u16>, Vec<Test>> {
    let mut found: BTreeMap<Option<u16>, Vec<Test>> = BTreeMap::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().as_bytes()[1] == b'_')
        .collect();
    files.sort();
    for path in files {
        let source = std::fs::read_to_string(&path).unwrap();
        let mut lines = source.lines().peekable();
        while let Some(line) = lines.next() {
            if line != "#[test]" {
                continue;
            }
            let Some(name) = lines
                .peek()
                .and_then(|line| line.strip_prefix("fn ")?.strip_suffix("() {"))
            else {
                panic!("{}: a test that is not read: {:?}", path.display(), lines.peek());
            };
            let number = name.strip_prefix("case_").and_then(|rest| rest.get(..3)?.parse().ok());
            found.entry(number).or_default().push(Test {
                file: path.file_name().unwrap().to_str().unwrap().to_owned(),
                name: name.to_owned(),
            });
        }
    }
    found
}

fn page(tests: &BTreeMap<Option<u16>, Vec<Test>>) -> String {
    let mut page = String::from(
        "# Shell cases and their tests\n\n\
         <!-- Made by `UPDATE_SHELL_CASES=1 cargo test -p cli-mcp-agent --test shell_cases page`; do not edit. -->\n\n\
         Failures that users of persistent shells have reported in public, and the test that keeps the sandbox agent from\n\
         each. Every test runs the real agent with a real bash. Numbers that are missing were never given.\n",
    );
    let link = |test: &Test| {
        let Test { file, name } = test;
        format!("[`{name}`](../cmd/agent/tests/shell_cases/{file})")
    };
    for (section, title) in SECTIONS {
        let _ = write!(
            page,
            "\n## {section}. {title}\n\n| case | what fails elsewhere | test |\n|---|---|---|\n"
        );
        for (_, number, subject) in CASES.iter().filter(|(of, ..)| *of == section) {
            let links: Vec<String> = tests.get(&Some(*number)).into_iter().flatten().map(link).collect();
            let _ = writeln!(
                page,
                "| {number} | {} | {} |",
                subject.replace('|', "\\|"),
                links.join("<br>")
            );
        }
    }
    page.push_str("\n## More of the same kinds\n\n| test | |\n|---|---|\n");
    for test in tests.get(&None).into_iter().flatten() {
        let _ = writeln!(page, "| {} | {} |", link(test), test.name.replace('_', " "));
    }
    page
}

#[test]
fn page_of_cases_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = tests(&root.join("tests/shell_cases"));
    let missing: Vec<u16> = CASES
        .iter()
        .map(|(_, number, _)| *number)
        .filter(|number| !tests.contains_key(&Some(*number)))
        .collect();
    assert!(missing.is_empty(), "cases without a test: {missing:?}");
    let unknown: Vec<_> = tests
        .keys()
        .flatten()
        .filter(|number| !CASES.iter().any(|(_, known, _)| known == *number))
        .collect();
    assert!(unknown.is_empty(), "tests of no known case: {unknown:?}");
    let path = root.join("../../docs/shell-cases.md");
    let made = page(&tests);
    if std::env::var_os("UPDATE_SHELL_CASES").is_some() {
        std::fs::write(&path, made).unwrap();
        return;
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == made,
        "docs/shell-cases.md is stale: run UPDATE_SHELL_CASES=1 cargo test -p cli-mcp-agent --test shell_cases page"
    );
}
