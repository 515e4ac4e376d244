//! What the conversation shows: commands, and what each must answer for the demo to have shown it.

use crate::session::BashResult;

/// A step of the conversation.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it shows.
    pub shows: &'static str,
    /// The command.
    pub command: String,
    /// What it means when the answer is another.
    pub otherwise: &'static str,
    shown: fn(&BashResult) -> bool,
}

impl Step {
    fn new(
        shows: &'static str,
        command: impl Into<String>,
        otherwise: &'static str,
        shown: fn(&BashResult) -> bool,
    ) -> Self {
        Self {
            shows,
            command: command.into(),
            otherwise,
            shown,
        }
    }

    /// Whether the answer shows what it should.
    #[must_use]
    pub fn is_shown_by(&self, result: &BashResult) -> bool {
        (self.shown)(result)
    }
}

/// A pod that `kubectl exec` is tried on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecPod {
    namespace: String,
    name: String,
}

impl std::str::FromStr for ExecPod {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err("write NAMESPACE/POD".to_owned()),
        }
    }
}

/// The conversation; the API server is `address:port`.
#[must_use]
pub fn steps(api_server: &str, exec_pod: &ExecPod) -> Vec<Step> {
    let ExecPod { namespace, name } = exec_pod;
    vec![
        Step::new(
            "kubectl works: the proxy puts the real credential in, and a real API server answers",
            "kubectl get pods -A",
            "kubectl did not list the pods",
            |pods| pods.exit_code == Some(0) && pods.stdout.contains("kube-system"),
        ),
        Step::new(
            "A session is one shell: set a variable, change the directory",
            "cd /tmp && investigation=42",
            "the shell did not do it",
            |done| done.exit_code == Some(0),
        ),
        Step::new(
            "… and the next call finds both",
            "echo \"$PWD $investigation\"",
            "the shell's state was lost",
            |kept| kept.stdout == "/tmp 42\n",
        ),
        Step::new(
            "What the sandbox holds is no credential",
            "kubectl config view --raw -o jsonpath='{.users[*].user.token}{\"\\n\"}'; ls /var/run/secrets 2>&1",
            "the kubeconfig holds another token",
            |dummy| dummy.stdout.starts_with("proxy-managed-token\n"),
        ),
        Step::new(
            "The API server cannot be reached around the proxy",
            format!("curl --noproxy '*' -sk --max-time 3 https://{api_server}/version; echo \"curl exit code: $?\""),
            "it was reached",
            // A dropped packet is a timeout, a rejected one a refusal.
            |blocked| ["curl exit code: 28\n", "curl exit code: 7\n"].contains(&blocked.stdout.as_str()),
        ),
        Step::new(
            "The proxy refuses to run code elsewhere, and says why",
            format!("kubectl exec -n {namespace} {name} -- id"),
            "exec was not refused",
            |refused| refused.is_error && refused.stderr.contains("denied by credential proxy"),
        ),
        Step::new(
            "A command that fails is a result, not a protocol error",
            "ls /no/such/folder",
            "the failure did not come back as a tool result",
            |failed| failed.is_error && failed.exit_code == Some(2),
        ),
    ]
}

/// A result as the conversation prints it: the output, indented, and how the command ended.
#[must_use]
pub fn printed(result: &BashResult) -> String {
    let mut text = String::new();
    for line in result.stdout.lines().chain(result.stderr.lines()) {
        text.push_str("  ");
        text.push_str(line);
        text.push('\n');
    }
    let code = result
        .exit_code
        .map_or_else(|| "no exit code".to_owned(), |code| format!("exit code {code}"));
    let error = if result.is_error { ", isError" } else { "" };
    format!("{text}  ({code}, {} ms{error})\n", result.duration_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> Vec<Step> {
        steps("10.96.0.1:443", &"team/pod-1".parse().unwrap())
    }

    fn answer(exit_code: i32, stdout: &str, stderr: &str) -> BashResult {
        BashResult {
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
            exit_code: Some(exit_code),
            is_error: exit_code != 0,
            duration_ms: 7,
            ..BashResult::default()
        }
    }

    /// What a cluster answers to each step.
    fn good() -> Vec<BashResult> {
        vec![
            answer(0, "NAMESPACE NAME\nkube-system coredns\n", ""),
            answer(0, "", ""),
            answer(0, "/tmp 42\n", ""),
            answer(0, "proxy-managed-token\nls: cannot access\n", ""),
            answer(0, "curl exit code: 28\n", ""),
            answer(1, "", "Error from server (Forbidden): denied by credential proxy: exec"),
            answer(2, "", "ls: cannot access '/no/such/folder'"),
        ]
    }

    #[test]
    fn each_step_is_shown_by_what_it_promises() {
        let answers = good();
        assert_eq!(conversation().len(), answers.len());
        for (step, answer) in conversation().iter().zip(&answers) {
            assert!(step.is_shown_by(answer), "{step:?} {answer:?}");
        }
    }

    #[test]
    fn no_step_is_shown_by_an_answer_that_breaks_its_promise() {
        let broken = [
            answer(1, "kube-system", "the connection was refused"),
            answer(1, "", "cd: /tmp: No such file or directory"),
            answer(0, "/workspace \n", ""),
            answer(0, "eyJhbGciOi.a.b\n", ""),
            answer(0, "{\"major\": \"1\"}curl exit code: 0\n", ""),
            answer(0, "uid=0(root)\n", ""),
            answer(0, "", ""),
        ];
        for (step, answer) in conversation().iter().zip(&broken) {
            assert!(!step.is_shown_by(answer), "{step:?} {answer:?}");
        }
    }

    #[test]
    fn the_commands_name_the_given_server_and_pod() {
        let commands: Vec<String> = conversation().into_iter().map(|step| step.command).collect();
        assert!(
            commands
                .iter()
                .any(|command| command.contains("https://10.96.0.1:443/")),
            "{commands:?}"
        );
        assert!(
            commands.contains(&"kubectl exec -n team pod-1 -- id".to_owned()),
            "{commands:?}"
        );
        for bad in ["pod", "/pod", "team/", "a/b/c"] {
            assert!(bad.parse::<ExecPod>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_result_is_printed_with_both_streams_and_its_end() {
        assert_eq!(printed(&answer(0, "a\nb\n", "")), "  a\n  b\n  (exit code 0, 7 ms)\n");
        assert_eq!(
            printed(&answer(3, "", "no\n")),
            "  no\n  (exit code 3, 7 ms, isError)\n"
        );
    }
}
