//! Completion through kubectl: what can stand at the end of a line that is being typed after `kubectl cli-mcp`.
//!
//! kubectl asks the program `kubectl_complete-cli_mcp` in PATH with the words of the line, and takes its answer as cobra
//! writes it: a candidate a line, a tab before its description, at the end a colon and a number
//! (<https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/#discovering-plugins>).

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::{Arg, Args, Command, CommandFactory, FromArgMatches};
use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_serving::exit;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::ListParams;
use kube::config::Kubeconfig;
use kube::{Api, ResourceExt};

use crate::cli::{Cli, Place};
use crate::cluster::Cluster;
use crate::sessions;

/// First argument with which `kubectl_complete-cli_mcp` calls this program.
pub const ASK: &str = "__complete";

/// The longest that a person who pressed the tab key waits for names out of the cluster.
const PATIENCE: Duration = Duration::from_secs(3);

/// cobra's ShellCompDirectiveDefault: where there is no candidate, the shell completes files.
const FILES: u8 = 0;
/// cobra's ShellCompDirectiveNoFileComp.
const NO_FILES: u8 = 4;

/// What can stand there.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// One of these words, each with a description.
    Words(Vec<(String, String)>),
    /// A name out of the cluster.
    Name(Kind),
    /// A file.
    File,
    /// Anything.
    Anything,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Session,
    Instance,
    Namespace,
    Context,
    ClusterRole,
}

/// A line, read up to its last word.
struct Line {
    wanted: Wanted,
    /// What each candidate begins with and the shell has already: `--output=`.
    before: String,
    /// The beginning of the last word, after that.
    prefix: String,
    /// Flags with their values, by clap's id.
    values: BTreeMap<String, String>,
}

/// Answers kubectl.
#[must_use]
pub fn answer(words: &[String]) -> ExitCode {
    let mut command = Cli::command();
    command.build();
    let line = read(&command, words);
    let (candidates, directive) = match &line.wanted {
        Wanted::Words(words) => (words.clone(), NO_FILES),
        Wanted::Name(kind) => (names(*kind, &line.values), NO_FILES),
        Wanted::File => (Vec::new(), FILES),
        Wanted::Anything => (Vec::new(), NO_FILES),
    };
    exit::print(&cobra(&line, &candidates, directive))
}

fn cobra(line: &Line, candidates: &[(String, String)], directive: u8) -> String {
    let mut text = String::new();
    for (word, description) in candidates.iter().filter(|(word, _)| word.starts_with(&line.prefix)) {
        text.push_str(&line.before);
        text.push_str(word);
        if !description.is_empty() {
            text.push('\t');
            text.push_str(description);
        }
        text.push('\n');
    }
    format!("{text}:{directive}\n")
}

fn read(root: &Command, words: &[String]) -> Line {
    let (last, before) = words
        .split_last()
        .map_or(("", &[][..]), |(last, rest)| (last.as_str(), rest));
    let mut command = root;
    let mut values = BTreeMap::new();
    let mut pending: Option<&Arg> = None;
    let mut positionals = 0;
    for word in before {
        if let Some(flag) = pending.take() {
            values.insert(flag.get_id().to_string(), word.clone());
        } else if word == "--" {
            // The words of a command in a sandbox.
            return line(Wanted::Anything, "", last, values);
        } else if let Some((flag, value)) = flag(command, word) {
            match value {
                Some(value) => drop(values.insert(flag.get_id().to_string(), value.to_owned())),
                None => pending = Some(flag).filter(|flag| flag.get_action().takes_values()),
            }
        } else if let Some(subcommand) = command.find_subcommand(word) {
            command = subcommand;
        } else if !word.starts_with('-') {
            positionals += 1;
        }
    }
    if let Some(flag) = pending {
        return line(value_of(flag), "", last, values);
    }
    if let Some((name, value)) = last.split_once('=')
        && let Some((flag, _)) = flag(command, name)
    {
        return line(value_of(flag), &format!("{name}="), value, values);
    }
    let wanted = if last.starts_with('-') {
        Wanted::Words(flags(command))
    } else if command.has_subcommands() {
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        Wanted::Words(
            visible
                .map(|command| (command.get_name().to_owned(), first_line(command.get_about())))
                .collect(),
        )
    } else {
        positional(command, positionals).map_or(Wanted::Anything, value_of)
    };
    line(wanted, "", last, values)
}

fn line(wanted: Wanted, before: &str, prefix: &str, values: BTreeMap<String, String>) -> Line {
    Line {
        wanted,
        before: before.to_owned(),
        prefix: prefix.to_owned(),
        values,
    }
}

/// The flag that a word is, and the value that it holds: `--output=json`, `-ojson`.
fn flag<'a, 'b>(command: &'a Command, word: &'b str) -> Option<(&'a Arg, Option<&'b str>)> {
    let mut arguments = command.get_arguments();
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long
            .split_once('=')
            .map_or((long, None), |(name, value)| (name, Some(value)));
        return arguments
            .find(|argument| argument.get_long() == Some(name))
            .map(|argument| (argument, value));
    }
    let mut letters = word.strip_prefix('-')?.chars();
    let letter = letters.next()?;
    let argument = arguments.find(|argument| argument.get_short() == Some(letter))?;
    let value = letters.as_str();
    let held = !value.is_empty() && argument.get_action().takes_values();
    Some((argument, held.then_some(value)))
}

fn flags(command: &Command) -> Vec<(String, String)> {
    command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .filter_map(|argument| Some((format!("--{}", argument.get_long()?), first_line(argument.get_help()))))
        .collect()
}

/// The argument at that place; the last one may take all that follow.
fn positional(command: &Command, place: usize) -> Option<&Arg> {
    let arguments: Vec<&Arg> = command
        .get_positionals()
        .filter(|argument| !argument.is_last_set())
        .collect();
    let takes_more = |argument: &&&Arg| matches!(argument.get_action(), clap::ArgAction::Append);
    arguments
        .get(place)
        .or_else(|| arguments.last().filter(takes_more))
        .copied()
}

/// What stands for an argument: by its own values, else by its name.
fn value_of(argument: &Arg) -> Wanted {
    let possible = argument.get_possible_values();
    if !possible.is_empty() {
        let words = possible
            .iter()
            .map(|value| (value.get_name().to_owned(), first_line(value.get_help())));
        return Wanted::Words(words.collect());
    }
    match argument.get_id().as_str() {
        "session" | "sessions" => Wanted::Name(Kind::Session),
        "instance" => Wanted::Name(Kind::Instance),
        "namespace" | "in_namespaces" => Wanted::Name(Kind::Namespace),
        "context" => Wanted::Name(Kind::Context),
        "cluster_role" => Wanted::Name(Kind::ClusterRole),
        "kubeconfig" | "token_file" | "ca_file" | "file" => Wanted::File,
        _ => Wanted::Anything,
    }
}

fn first_line(text: Option<&StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Names out of the cluster; none when it does not answer: a completion has nobody to tell why.
fn names(kind: Kind, values: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listed = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()
        .and_then(|runtime| {
            let listing = async { tokio::time::timeout(PATIENCE, list(kind, values)).await.ok()? };
            runtime.block_on(listing)
        });
    listed
        .unwrap_or_default()
        .into_iter()
        .map(|name| (name, String::new()))
        .collect()
}

async fn list(kind: Kind, values: &BTreeMap<String, String>) -> Option<Vec<String>> {
    let place = place(values)?;
    if kind == Kind::Context {
        let kubeconfig = match &place.kubeconfig {
            Some(file) => Kubeconfig::read_from(file),
            None => Kubeconfig::read(),
        };
        return Some(
            kubeconfig
                .ok()?
                .contexts
                .into_iter()
                .map(|context| context.name)
                .collect(),
        );
    }
    let cluster = Cluster::of(&place).await.ok()?;
    Some(match kind {
        Kind::Session => sessions::names(&cluster, values.get("instance").map(String::as_str))
            .await
            .ok()?,
        Kind::Instance => all(cluster.api::<CliMcpInstance>()).await?,
        Kind::ClusterRole => all(Api::<ClusterRole>::all(cluster.client.clone())).await?,
        Kind::Namespace | Kind::Context => all(Api::<Namespace>::all(cluster.client.clone())).await?,
    })
}

async fn all<K>(api: Api<K>) -> Option<Vec<String>>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let list = api.list(&ListParams::default()).await.ok()?;
    Some(list.iter().map(ResourceExt::name_any).collect())
}

/// The flags and variables that say which cluster and namespace, as the commands have them.
fn place(values: &BTreeMap<String, String>) -> Option<Place> {
    let flags = ["namespace", "context", "kubeconfig"]
        .into_iter()
        .filter_map(|flag| Some(format!("--{flag}={}", values.get(flag)?)));
    let command = Place::augment_args(Command::new(ASK));
    let matches = command.try_get_matches_from(std::iter::once(ASK.to_owned()).chain(flags));
    Place::from_arg_matches(&matches.ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(words: &[&str]) -> Line {
        let mut command = Cli::command();
        command.build();
        read(&command, &words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    fn words(words: &[&str]) -> Vec<String> {
        match line_of(words).wanted {
            Wanted::Words(words) => words.into_iter().map(|(word, _)| word).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_come_first_and_flags_after_a_dash() {
        let commands = words(&[""]);
        assert!(
            ["sessions", "run", "check"]
                .iter()
                .all(|name| commands.contains(&(*name).to_owned())),
            "{commands:?}"
        );
        let flags = words(&["run", "s1", "-"]);
        assert!(
            flags.contains(&"--timeout".to_owned()) && flags.contains(&"--namespace".to_owned()),
            "{flags:?}"
        );
    }

    #[test]
    fn a_name_is_looked_for_where_one_stands() {
        let wanted = |words: &[&str]| line_of(words).wanted;
        assert_eq!(wanted(&["run", ""]), Wanted::Name(Kind::Session));
        assert_eq!(wanted(&["run", "-n", "ns", ""]), Wanted::Name(Kind::Session));
        assert_eq!(wanted(&["run", "s1", ""]), Wanted::Anything);
        assert_eq!(wanted(&["delete", "s1", ""]), Wanted::Name(Kind::Session));
        assert_eq!(wanted(&["-n", ""]), Wanted::Name(Kind::Namespace));
        assert_eq!(wanted(&["check", "--instance=a"]), Wanted::Name(Kind::Instance));
        assert_eq!(wanted(&["check", "--context", ""]), Wanted::Name(Kind::Context));
        assert_eq!(
            wanted(&["investigation-kubeconfig", "--cluster-role", ""]),
            Wanted::Name(Kind::ClusterRole)
        );
        assert_eq!(wanted(&["run", "--ca-file", ""]), Wanted::File);
        assert_eq!(wanted(&["run", "s1", "--", "kubectl", "-"]), Wanted::Anything);
        assert_eq!(words(&["sessions", "-A", "-o", ""]), ["text", "json"]);
    }

    #[test]
    fn flags_before_say_where_to_look() {
        let line = line_of(&["delete", "-nteam", "--instance=a", "--context", "c", ""]);
        let value = |id: &str| line.values.get(id).map(String::as_str);
        assert_eq!(
            (value("namespace"), value("instance"), value("context")),
            (Some("team"), Some("a"), Some("c"))
        );
        assert_eq!(place(&line.values).unwrap().namespace.as_deref(), Some("team"));
    }

    #[test]
    fn the_answer_is_as_cobra_writes_it() {
        let line = line_of(&["sessions", "--output=j"]);
        let Wanted::Words(candidates) = &line.wanted else {
            panic!("{:?}", line.wanted)
        };
        let answer = cobra(&line, candidates, NO_FILES);
        assert!(
            answer.starts_with("--output=json\t") && answer.ends_with("\n:4\n") && answer.lines().count() == 2,
            "{answer:?}"
        );
        assert_eq!(cobra(&line_of(&["run", "-f", ""]), &[], FILES), ":0\n");
    }
}
