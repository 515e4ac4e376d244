//! Bad invocations of the program: one line that names flag or file, exit code 2, before anything is served.

#[test]
fn a_bad_invocation_is_one_line_and_code_2() {
    let table: [(&[&str], &str); 6] = [
        (&["--no-such-flag"], "--no-such-flag"),
        (&["--listen=here"], "--listen"),
        (&["--max-connections=0"], "--max-connections"),
        (&["--drain-timeout=25"], "--drain-timeout"),
        (&["--completion=csh"], "csh"),
        (&["--routes-dir=/no/such/folder"], "/no/such/folder/proxy-config.json"),
    ];
    for (arguments, named) in table {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_proxy"));
        let output = command.env_clear().args(arguments).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
        assert!(
            line.starts_with("error: ") && line.contains(named),
            "{arguments:?}: {line}"
        );
        assert_eq!(line.lines().count(), 1, "{arguments:?}: {line}");
    }
}
