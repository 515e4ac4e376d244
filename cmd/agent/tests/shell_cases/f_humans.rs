//! Section F: programs that want a human.

use crate::harness::{Agent, installed};

#[test]
fn case_080_git_editors() {
    if !installed("git") {
        return;
    }
    let agent = Agent::start();
    agent.run(
        "git init -q r; cd r; git config user.email a@b.c; git config user.name n; for i in 1 2 3; do echo $i >f; git add f; git commit -qm $i; done",
    );
    agent.out("echo 4 >f; git add f");
    let before = agent.out("git rev-parse HEAD");
    for command in [
        "git commit",
        "git rebase -i HEAD~1",
        "git commit --amend",
        "git -c core.editor= tag -a v1",
    ] {
        let result = agent.run(command);
        assert!(
            result.exit_code != 0 && !result.timed_out && !result.stderr.is_empty(),
            "{command}: {result:?}"
        );
        assert_eq!(agent.out("git rev-parse HEAD"), before, "{command}");
    }
    let result = agent.run("git stash -q; GIT_EDITOR=true git rebase -i HEAD~2; git stash drop -q");
    assert_eq!(result.exit_code, 0, "{result:?}");
    let result =
        agent.run("echo 5 >f; git add f; git config core.editor 'echo mine >'; git commit; git log -1 --format=%s");
    assert!(result.stdout.contains("mine"), "{result:?}");
}

#[test]
fn case_081_pagers() {
    let agent = Agent::start();
    if installed("git") {
        let count = "git init -q r && cd r && git -c user.email=a@b.c -c user.name=n commit -q --allow-empty -m one && git log --format=%s";
        assert_eq!(agent.out(count), "one\n");
    }
    if installed("less") {
        assert_eq!(
            agent.out("less /etc/passwd"),
            std::fs::read_to_string("/etc/passwd").unwrap()
        );
    }
    if installed("man") {
        assert!(!agent.run("man ls").timed_out);
    }
    assert_eq!(agent.out("echo $PAGER $GIT_PAGER"), "cat cat\n");
    agent.out("export PAGER=more");
    assert_eq!(agent.out("echo $PAGER"), "more\n");
}

#[test]
fn case_082_no_terminal_to_ask_on() {
    let agent = Agent::start();
    let result = agent.run("read x </dev/tty; echo rc=$?");
    assert_eq!(result.stdout, "rc=1\n");
    assert!(result.stderr.contains("No such device or address"), "{result:?}");
    if installed("ssh") {
        let result = agent.run("ssh -o ConnectTimeout=1 -p 1 127.0.0.1");
        assert!(result.exit_code != 0 && !result.timed_out, "{result:?}");
    }
    if installed("sudo") {
        assert!(!agent.run("sudo -k true").timed_out);
    }
}

#[test]
fn case_083_full_screen_programs_and_interpreters() {
    let agent = Agent::start();
    agent.out("K=1");
    for program in ["python3", "vim", "top", "psql", "mysql", "bash", "sh"] {
        if installed(program) {
            let result = agent.run_for(5, if program == "vim" { "vim f" } else { program });
            assert!(!result.stdout.contains("password"), "{program}: {result:?}");
            assert_eq!(agent.run("echo $K").stdout, "1\n", "{program}");
        }
    }
}

#[test]
fn case_084_debconf() {
    let agent = Agent::start();
    assert_eq!(agent.out("echo $DEBIAN_FRONTEND"), "noninteractive\n");
    // As apt-get asks.
    let result = agent.run("printf 'Do you want to continue? [Y/n] '; read answer || { echo Abort.; false; }");
    assert_eq!(
        (result.exit_code, result.stdout.as_str()),
        (1, "Do you want to continue? [Y/n] Abort.\n")
    );
    if !installed("debconf") {
        return;
    }
    // A package that asks while it is configured, with a database of its own.
    let result = agent.run(
        r#"
for name in config templates; do printf 'Name: %s\nDriver: File\nFilename: %s\n\n' $name $PWD/$name.dat; done >databases
{ printf 'Config: config\nTemplates: templates\n\n'; cat databases; } >debconf.conf
printf 'Template: probe/question\nType: string\nDefault: by default\nDescription: What?\n' >templates
printf '%s\n' '#!/bin/sh' '. /usr/share/debconf/confmodule' 'db_x_loadtemplatefile "$PWD/templates" probe' \
    'db_input critical probe/question' 'db_go' 'db_get probe/question' 'echo "$RET" >answer' >configure
chmod +x configure
DEBCONF_SYSTEMRC=$PWD/debconf.conf debconf --owner=probe ./configure && cat answer"#,
    );
    assert_eq!(
        (result.exit_code, result.stdout.as_str(), result.stderr.as_str()),
        (0, "by default\n", ""),
        "{result:?}"
    );
}

#[test]
fn case_085_kubectl() {
    let agent = Agent::start();
    // Followed logs: partial output and a timeout. A forwarded port: alive in the next call.
    let result = agent.run_for(1, "while :; do echo line; sleep 0.1; done");
    assert!(
        result.timed_out && result.stdout.starts_with("line\nline\n"),
        "{result:?}"
    );
    agent.out("sleep 300 & echo forwarding");
    assert_eq!(agent.processes().len(), 1);
    let result = agent.run("${KUBE_EDITOR:-$EDITOR} file");
    assert!(result.exit_code != 0 && !result.timed_out, "{result:?}");
    // The rest of the case is `proxy_kubectl` of the end-to-end tests: it needs an API server.
    if installed("kubectl") {
        let result = agent.run("kubectl --server=http://127.0.0.1:1 exec -it p -- sh");
        assert!(result.exit_code != 0 && !result.timed_out, "{result:?}");
    }
}
