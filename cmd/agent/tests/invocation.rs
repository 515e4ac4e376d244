//! Bad invocations of the program: one line that names flag or variable, exit code 2, and no token in it.

/// Arguments, environment, and what the line must name.
type Row<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);

#[test]
fn a_bad_invocation_is_one_line_and_code_2() {
    let digest = "0".repeat(64);
    let table: [Row<'_>; 6] = [
        (&["--no-such-flag"], &[], "--no-such-flag"),
        (&["serve-it"], &[], "serve-it"),
        (&[], &[], "SANDBOX_AUTH_TOKEN_SHA256"),
        (
            &["--listen=localhost:8090"],
            &[("SANDBOX_AUTH_TOKEN_SHA256", &digest)],
            "--listen",
        ),
        (
            &[],
            &[("SANDBOX_AUTH_TOKEN_SHA256", "hunter2")],
            "SANDBOX_AUTH_TOKEN_SHA256",
        ),
        (
            &[],
            &[
                ("SANDBOX_AUTH_TOKEN_SHA256", &digest),
                ("SANDBOX_EGRESS_CHECK", "Required"),
            ],
            "SANDBOX_EGRESS_TARGET",
        ),
    ];
    for (arguments, environment, named) in table {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_agent"));
        let output = command
            .env_clear()
            .envs(environment.iter().copied())
            .args(arguments)
            .output()
            .unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
        assert!(
            line.starts_with("error: ") && line.contains(named),
            "{arguments:?}: {line}"
        );
        assert_eq!(line.lines().count(), 1, "{arguments:?}: {line}");
        assert!(!line.contains("hunter2"), "{line}");
    }
}
