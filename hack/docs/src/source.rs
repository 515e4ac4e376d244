//! What the sources say that no program can be asked for: error texts, reasons with their meaning, the fields of audit
//! lines, registered metrics. Read from the syntax tree, so that nothing can be left out.

mod collect;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::TokenTree;
use syn::visit::Visit;
use syn::{Attribute, Expr, Lit, Meta};

pub use collect::{Label, Metric, Text};

/// Where the texts that users meet come from: folder, and how a list of `docs/troubleshoot.md` calls it.
const PARTS: [(&str, &str); 8] = [
    ("cmd/server/src", "server"),
    ("cmd/agent/src", "agent"),
    ("cmd/proxy/src", "proxy"),
    ("cmd/operator/src", "operator"),
    ("controllers/src", "controllers"),
    ("pkg/kubeconfig/src", "kubeconfig"),
    ("pkg/serving/src", "serving"),
    ("cmd/kubectl-plugin/src", "plugin"),
];

/// A parsed source file.
pub(crate) struct Source {
    /// Path below the part's folder.
    pub(crate) name: String,
    pub(crate) file: syn::File,
}

/// Every error text of the programs, sorted by key.
///
/// # Errors
///
/// When a source file cannot be read or parsed.
pub fn texts(repository: &Path) -> Result<Vec<Text>> {
    let mut all = Vec::new();
    for (folder, part) in PARTS {
        for source in sources(&repository.join(folder))? {
            let mut visitor = collect::Texts::new(part, &source.name);
            visitor.visit_file(&source.file);
            all.extend(visitor.found);
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// Every metric that a part registers, in the order of the code.
///
/// # Errors
///
/// When a source file cannot be read or parsed.
pub fn metrics(repository: &Path, folder: &str) -> Result<Vec<Metric>> {
    let mut all = Vec::new();
    for source in sources(&repository.join(folder))? {
        let mut visitor = collect::Metrics::new(&source.file);
        visitor.visit_file(&source.file);
        all.extend(visitor.found);
    }
    Ok(all)
}

/// A constant: its value and what its doc comment says.
pub struct Constant {
    /// The text that it stands for.
    pub value: String,
    /// Its doc comment.
    pub doc: String,
}

/// The text constants of a file, outside and inside of its module `inner`.
///
/// # Errors
///
/// When it cannot be read or parsed.
pub fn constants(path: &Path, inner: &str) -> Result<(Vec<Constant>, Vec<Constant>)> {
    let file = parse(path)?;
    let of = |items: &[syn::Item]| -> Vec<Constant> {
        items
            .iter()
            .filter_map(|item| match item {
                syn::Item::Const(constant) => Some(Constant {
                    value: literal(&constant.expr)?,
                    doc: doc(&constant.attrs),
                }),
                _ => None,
            })
            .collect()
    };
    let module = file.items.iter().find_map(|item| match item {
        syn::Item::Mod(module) if module.ident == inner => module.content.as_ref(),
        _ => None,
    });
    let (_, items) = module.with_context(|| format!("{}: no module {inner}", path.display()))?;
    Ok((of(&file.items), of(items)))
}

/// A field of a struct that is written as JSON.
pub struct Field {
    /// Name in the code.
    pub name: String,
    /// Whether it may be missing.
    pub optional: bool,
    /// Its doc comment.
    pub doc: String,
    /// Whether `#[serde(skip)]` keeps it out, or `#[serde(flatten)]` puts its own fields in its place.
    pub hidden: bool,
}

/// The fields of a struct.
///
/// # Errors
///
/// When the file cannot be read or has no such struct.
pub fn fields(path: &Path, name: &str) -> Result<Vec<Field>> {
    let file = parse(path)?;
    let found = file.items.iter().find_map(|item| match item {
        syn::Item::Struct(item) if item.ident == name => Some(item),
        _ => None,
    });
    let found = found.with_context(|| format!("{}: no struct {name}", path.display()))?;
    Ok(found
        .fields
        .iter()
        .filter_map(|field| {
            let serde: Vec<String> = field
                .attrs
                .iter()
                .filter(|attribute| attribute.path().is_ident("serde"))
                .filter_map(|attribute| attribute.meta.require_list().ok().map(|list| list.tokens.to_string()))
                .collect();
            let says = |word: &str| serde.iter().any(|tokens| tokens == word);
            Some(Field {
                name: field.ident.as_ref()?.to_string(),
                optional: serde.iter().any(|tokens| tokens.contains("skip_serializing_if")),
                doc: doc(&field.attrs),
                hidden: says("skip") || says("flatten"),
            })
        })
        .collect())
}

/// The reasons of events that a folder's code publishes under a name of their own.
///
/// # Errors
///
/// When a source file cannot be read or parsed.
pub fn event_reasons(folder: &Path) -> Result<Vec<String>> {
    let mut reasons = Vec::new();
    for source in sources(folder)? {
        let mut visitor = collect::EventReasons::default();
        visitor.visit_file(&source.file);
        reasons.extend(visitor.found);
    }
    reasons.sort();
    reasons.dedup();
    Ok(reasons)
}

/// The source file that is named, or those below a folder, in the order of their names, without those that only tests use.
pub(crate) fn sources(folder: &Path) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    if folder.is_file() {
        paths.push(folder.to_owned());
    } else {
        walk(folder, &mut paths)?;
    }
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
            Ok(Source {
                name,
                file: parse(&path)?,
            })
        })
        .collect()
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if path.is_dir() {
            walk(&path, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !matches!(stem, "tests" | "fixtures" | "fake")
        {
            paths.push(path);
        }
    }
    Ok(())
}

fn parse(path: &Path) -> Result<syn::File> {
    syn::parse_file(&crate::read(path)?).with_context(|| format!("cannot parse {}", path.display()))
}

/// The doc comment of an item on one line.
pub(crate) fn doc(attributes: &[Attribute]) -> String {
    let lines: Vec<String> = attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("doc"))
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(value) => literal(&value.value),
            _ => None,
        })
        .map(|line| line.trim().to_owned())
        .collect();
    lines.join(" ").trim().to_owned()
}

/// The text that an expression is made from: a literal, one that a method turns into something else, or the format of a
/// `format!`.
pub(crate) fn literal(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(lit) => match &lit.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        Expr::MethodCall(call) => literal(&call.receiver),
        Expr::Reference(reference) => literal(&reference.expr),
        Expr::Paren(inner) => literal(&inner.expr),
        Expr::Macro(call) if call.mac.path.is_ident("format") || call.mac.path.is_ident("format_args") => {
            first_literal(call.mac.tokens.clone())
        }
        _ => None,
    }
}

/// The first text literal of a token stream.
pub(crate) fn first_literal(tokens: proc_macro2::TokenStream) -> Option<String> {
    match tokens.into_iter().next()? {
        TokenTree::Literal(literal) => match Lit::new(literal) {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// Whether an item is compiled for tests only.
pub(crate) fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.to_string() == "test")
    })
}
