//! Links, manifests and commands of the documentation: they lead somewhere, they are valid, they can be run.
#![allow(clippy::unwrap_used, reason = "a test that cannot read what it tests has failed")]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Parser;
use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_docs::blocks::{self, Block};
use cli_mcp_docs::{RUN, links, read, repository};
use cli_mcp_kubectl_plugin::cli::Cli;

/// Every page for people.
fn pages() -> Vec<PathBuf> {
    let repository = repository();
    let mut pages = vec![repository.join("README.md"), repository.join("CHANGELOG.md")];
    for folder in ["docs", "docs/adr", "docs/reference"] {
        for entry in std::fs::read_dir(repository.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// Blocks of the pages that are commands.
fn commands() -> Vec<(PathBuf, Block)> {
    let mut all = Vec::new();
    for page in pages() {
        for block in blocks::of(&read(&page).unwrap()) {
            if block.is_commands() {
                all.push((page.clone(), block));
            }
        }
    }
    assert!(all.len() > 20);
    all
}

/// The command lines of a block, continued ones joined.
fn lines(block: &Block) -> Vec<String> {
    let joined = block.commands().replace("\\\n", " ");
    joined.lines().map(|line| line.trim().to_owned()).collect()
}

/// The words of a command line; what stands in double quotes is no border.
fn words(line: &str) -> Vec<&str> {
    let mut quoted = false;
    line.split(|c: char| {
        quoted ^= c == '"';
        !quoted && c.is_whitespace()
    })
    .filter(|word| !word.is_empty())
    .collect()
}

#[test]
fn links_lead_somewhere() {
    let repository = repository();
    let broken: Vec<String> = pages()
        .iter()
        .flat_map(|page| links::broken(&repository, page).unwrap())
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_can_be_found() {
    let repository = repository();
    let linked: BTreeSet<PathBuf> = pages()
        .iter()
        .flat_map(|page| links::led_to(&repository, page).unwrap())
        .collect();
    for page in pages().iter().filter(|page| page.starts_with(repository.join("docs"))) {
        let page = page.canonicalize().unwrap();
        let found = linked.contains(&page) || linked.contains(page.parent().unwrap());
        assert!(found, "no page links to {}", page.display());
    }
}

#[test]
fn images_are_those_of_this_version() {
    let mut found = 0;
    for page in pages() {
        let text = read(&page).unwrap();
        for after in text.split("quay.io/codeready-toolchain/cli-mcp-").skip(1) {
            let end = after
                .find(|c: char| !(c.is_ascii_alphanumeric() || "-.:".contains(c)))
                .unwrap_or(after.len());
            if let Some((image, tag)) = after[..end].split_once(':') {
                let expected = concat!("v", env!("CARGO_PKG_VERSION"));
                assert_eq!(tag, expected, "{}: cli-mcp-{image}", page.display());
                found += 1;
            }
        }
    }
    assert!(found > 5, "only {found}");
}

#[test]
fn every_command_is_run_or_says_why_not() {
    let repository = repository();
    for page in pages() {
        let text = read(&page).unwrap();
        let name = page.strip_prefix(&repository).unwrap().to_str().unwrap();
        let runs = RUN.contains(&name);
        let blocks = blocks::of(&text);
        let is_run = |block: &&Block| block.is_commands() && block.not_run.is_none();
        let left: Vec<usize> = blocks.iter().filter(is_run).map(|block| block.line).collect();
        if runs {
            assert!(
                !left.is_empty(),
                "{name} is among the pages that are run, and nothing of it is"
            );
        } else {
            assert!(
                left.is_empty(),
                "{name} lines {left:?}: add the page to RUN, or <!-- not run: REASON --> above each"
            );
            let tests = text.lines().any(|line| line.trim_start().starts_with("<!-- test:"));
            assert!(!tests, "{name} is not run, and has commands for that");
        }
        let stray = blocks::stray_reasons(&text);
        assert!(
            stray.is_empty(),
            "{name} lines {stray:?}: a reason stands above no commands"
        );
    }
    for name in RUN {
        assert!(repository.join(name).exists(), "{name}");
    }
}

/// Whether a line begins with a program that readers run.
fn is_command(line: &str) -> bool {
    const PROGRAMS: [&str; 8] = ["make", "kubectl", "oc", "podman", "docker", "cargo", "curl", "npx"];
    line.split_whitespace()
        .next()
        .is_some_and(|first| PROGRAMS.contains(&first) || (first.starts_with("hack/") && first != "hack/"))
}

#[test]
fn no_command_hides_from_these_tests() {
    for page in pages() {
        let text = read(&page).unwrap();
        let blocks = blocks::of(&text);
        for block in &blocks {
            let seen = match block.info.as_str() {
                "sh" => true,
                "console" => !lines(block).is_empty(),
                _ => !block.text.lines().any(is_command),
            };
            let (page, line) = (page.display(), block.line);
            assert!(
                seen,
                "{page} line {line}: commands stand behind sh, or behind console with a prompt"
            );
        }
        // An indented block is one to people, and none to these tests.
        let mut after_blank = false;
        for (number, line) in text.lines().enumerate() {
            let fenced = blocks
                .iter()
                .any(|block| (block.line..=block.line + block.text.lines().count()).contains(&number));
            let hidden = after_blank && !fenced && line.starts_with("    ") && is_command(line);
            assert!(
                !hidden,
                "{} line {}: commands stand between fences",
                page.display(),
                number + 1
            );
            after_blank = line.is_empty();
        }
    }
}

#[test]
fn commands_are_bash() {
    let whole = RUN.map(|name| {
        (
            repository().join(name),
            1,
            blocks::script(&read(&repository().join(name)).unwrap()),
        )
    });
    let single = commands()
        .into_iter()
        .map(|(page, block)| (page, block.line, block.commands()));
    for (page, line, script) in single.chain(whole) {
        let mut bash = Command::new("bash")
            .arg("-n")
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = bash.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{} line {line}: {}",
            page.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn make_targets_and_scripts_exist() {
    let repository = repository();
    let makefile = read(&repository.join("Makefile")).unwrap();
    for (page, block) in commands() {
        for line in lines(&block) {
            let words = words(&line);
            if let ["make", rest @ ..] = words.as_slice() {
                let targets = rest
                    .iter()
                    .take_while(|word| **word != "#")
                    .filter(|word| !word.contains('='));
                for target in targets {
                    let named = makefile.lines().any(|rule| {
                        rule.split_once(':')
                            .is_some_and(|(names, _)| names.split_whitespace().any(|name| name == *target))
                    });
                    assert!(named, "{} line {}: no make target {target}", page.display(), block.line);
                }
            }
            for word in words.iter().map(|word| word.trim_matches(['"', '$', '(', ')'])) {
                if word.starts_with("hack/") || word.starts_with("config/") {
                    assert!(
                        repository.join(word).exists(),
                        "{} line {}: {word} does not exist",
                        page.display(),
                        block.line
                    );
                }
            }
        }
    }
}

#[test]
fn commands_of_the_plugin_are_understood() {
    let mut understood = 0;
    for (page, block) in commands() {
        for line in lines(&block) {
            let Some(arguments) = line.strip_prefix("kubectl cli-mcp ") else {
                continue;
            };
            // What follows the dashes is the command's own.
            let own = arguments.split(" -- ").next().unwrap_or(arguments);
            let mut words: Vec<&str> = own
                .split_whitespace()
                .take_while(|word| !word.starts_with(['#', '|', '>']))
                .collect();
            words.insert(0, "kubectl-cli_mcp");
            if arguments.contains(" -- ") {
                words.extend(["--", "true"]);
            }
            match Cli::try_parse_from(words) {
                Err(error) if error.use_stderr() => panic!("{} line {}: {line}: {error}", page.display(), block.line),
                _ => understood += 1,
            }
        }
    }
    assert!(understood > 10, "only {understood}");
}

#[test]
fn every_field_of_the_spec_has_an_example_that_is_an_instance() {
    let page = read(&repository().join("docs/configure.md")).unwrap();
    let mut examples = String::new();
    for block in blocks::of(&page).iter().filter(|block| block.info == "yaml") {
        let instance: CliMcpInstance = serde_yaml::from_str(&block.text).unwrap();
        assert!(instance.metadata.name.is_some(), "line {}", block.line);
        examples.push_str(&block.text);
    }
    let crd = serde_json::to_value(cli_mcp_api::crd::custom_resource_definition()).unwrap();
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    let mut names: Vec<String> = spec.as_object().unwrap().keys().cloned().collect();
    for part in ["sandbox", "serverContainer", "proxy"] {
        names.extend(spec[part]["properties"].as_object().unwrap().keys().cloned());
    }
    names.extend(
        spec["proxy"]["properties"]["targets"]["items"]["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned(),
    );
    for name in names {
        assert!(
            examples.contains(&format!("{name}:")),
            "docs/configure.md has no example of {name}"
        );
    }
}
