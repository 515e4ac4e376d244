//! Visitors of the syntax tree: one for error texts, one for metrics, one for events.

use std::collections::BTreeMap;

use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprCall, ExprMethodCall, ExprStruct, ExprTuple, Field, ItemEnum, ItemMod, ItemStruct, Type,
};

use super::{doc, first_literal, for_tests, literal};

/// An error text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text {
    /// `PART/Type::Variant` for a variant of an error type, `PART/FILE: TEXT` for a text that is made where it is used.
    pub key: String,
    /// The text, with what is filled in as `<name>` or `…`.
    pub shown: String,
}

/// Functions that take a text for a user.
const SAYS: [&str; 5] = ["refuse", "refused", "error", "error_response", "Err"];
/// Types whose `new` does.
const NEW: [&str; 2] = ["Refusal", "ConfigError"];
/// Variants and structs that carry one.
const CARRIES: [&str; 4] = ["Failed", "Invocation", "NoResult", "Problem"];

pub(crate) struct Texts<'a> {
    part: &'a str,
    file: &'a str,
    pub(crate) found: Vec<Text>,
}

impl<'a> Texts<'a> {
    pub(crate) fn new(part: &'a str, file: &'a str) -> Self {
        Self {
            part,
            file,
            found: Vec::new(),
        }
    }

    fn variant(&mut self, name: &str, attributes: &[syn::Attribute]) {
        let format = attributes
            .iter()
            .filter(|attribute| attribute.path().is_ident("error"))
            .filter_map(|attribute| attribute.meta.require_list().ok())
            .find_map(|list| first_literal(list.tokens.clone()));
        if let Some(shown) = format.as_deref().and_then(shown) {
            self.found.push(Text {
                key: format!("{}/{name}", self.part),
                shown,
            });
        }
    }

    fn said<'e>(&mut self, expressions: impl Iterator<Item = &'e Expr>) {
        for text in expressions.filter_map(literal) {
            if let Some(shown) = shown(&text) {
                self.found.push(Text {
                    key: format!("{}/{}: {shown}", self.part, self.file),
                    shown,
                });
            }
        }
    }
}

impl<'ast> Visit<'ast> for Texts<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        for variant in &item.variants {
            self.variant(&format!("{}::{}", item.ident, variant.ident), &variant.attrs);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.variant(&item.ident.to_string(), &item.attrs);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(function) = call.func.as_ref() {
            let names: Vec<String> = function
                .path
                .segments
                .iter()
                .map(|segment| segment.ident.to_string())
                .collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let says = match names.as_slice() {
                [.., last] if SAYS.contains(last) || CARRIES.contains(last) => true,
                [.., type_, "new"] => NEW.contains(type_),
                _ => false,
            };
            if says {
                self.said(call.args.iter());
            }
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let receiver = match call.receiver.as_ref() {
            Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
            _ => None,
        };
        // `problems.add(…)`: what is wrong with a file, collected.
        let collects =
            receiver.is_some_and(|name| name == "problems") && (call.method == "add" || call.method == "push");
        if collects || call.method == "ok_or" {
            self.said(call.args.iter());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_struct(&mut self, made: &'ast ExprStruct) {
        let carries = made
            .path
            .segments
            .last()
            .is_some_and(|last| CARRIES.iter().any(|name| last.ident == name));
        if carries {
            let texts = made
                .fields
                .iter()
                .filter(|field| matches!(&field.member, syn::Member::Named(name) if name == "message"));
            self.said(texts.map(|field| &field.expr));
        }
        visit::visit_expr_struct(self, made);
    }
}

/// A format as a reader meets it; none where nothing of it is fixed.
fn shown(format: &str) -> Option<String> {
    let mut shown = String::new();
    let mut fixed = String::new();
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        shown.push_str(before);
        fixed.push_str(before);
        if from.starts_with("{{") || from.starts_with("}}") {
            shown.push_str(&from[..1]);
            rest = &from[2..];
            continue;
        }
        let end = from.find('}').map_or(from.len(), |end| end + 1);
        let name = from[1..end].trim_end_matches('}').split(':').next().unwrap_or_default();
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            shown.push('…');
        } else {
            shown.push_str(&format!("<{name}>"));
        }
        rest = &from[end..];
    }
    shown.push_str(rest);
    fixed.push_str(rest);
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    // A word of its own is a key or a value, not a text.
    (fixed.chars().filter(|c| c.is_alphabetic()).count() >= 6 && shown.contains(' ')).then_some(shown)
}

/// A registered metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name without the program's prefix, with the suffixes of unit and kind.
    pub name: String,
    /// Counter, gauge or histogram.
    pub kind: &'static str,
    /// Its labels.
    pub labels: Vec<Label>,
    /// What it counts.
    pub help: String,
}

/// A label of a metric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    /// Name.
    pub name: String,
    /// What it may be: the variants of its type, else the doc comment of its field.
    pub values: String,
}

pub(crate) struct Metrics {
    /// Types of fields by name, over all structs of the file.
    types: BTreeMap<String, Type>,
    /// Fields of label sets by name of the struct.
    labels: BTreeMap<String, Vec<Label>>,
    pub(crate) found: Vec<Metric>,
}

impl Metrics {
    pub(crate) fn new(file: &syn::File) -> Self {
        let (mut types, mut labels) = (BTreeMap::new(), BTreeMap::new());
        let variants = label_values(file);
        for item in &file.items {
            let syn::Item::Struct(item) = item else { continue };
            let named = |field: &Field| Some((field.ident.as_ref()?.to_string(), field.ty.clone()));
            types.extend(item.fields.iter().filter_map(named));
            let of_field = |field: &Field| {
                let mut names = Vec::new();
                idents(&field.ty, &mut names);
                let values = names.iter().find_map(|name| variants.get(name)).cloned();
                Some(Label {
                    name: field.ident.as_ref()?.unraw().to_string(),
                    values: values.unwrap_or_else(|| doc(&field.attrs)),
                })
            };
            labels.insert(
                item.ident.to_string(),
                item.fields.iter().filter_map(of_field).collect(),
            );
        }
        Self {
            types,
            labels,
            found: Vec::new(),
        }
    }

    fn registered(&mut self, call: &ExprMethodCall, unit: bool) {
        let arguments: Vec<&Expr> = call.args.iter().collect();
        let (Some(name), Some(help), Some(metric)) = (
            arguments.first().and_then(|name| literal(name)),
            arguments.get(1).and_then(|help| literal(help)),
            arguments.last().and_then(|metric| field(metric)),
        ) else {
            return;
        };
        let mut names = Vec::new();
        if let Some(type_) = self.types.get(&metric) {
            idents(type_, &mut names);
        }
        let has = |kind: &str| names.iter().any(|name| name == kind);
        let (kind, suffix) = if has("Counter") {
            ("counter", "_total")
        } else if has("Histogram") {
            ("histogram", "")
        } else {
            ("gauge", "")
        };
        let unit = match arguments.get(2) {
            Some(Expr::Path(path)) if unit => path
                .path
                .segments
                .last()
                .map(|last| format!("_{}", last.ident).to_lowercase()),
            _ => None,
        };
        let labels = names
            .iter()
            .find_map(|name| self.labels.get(name))
            .cloned()
            .unwrap_or_default();
        self.found.push(Metric {
            name: format!("{name}{}{suffix}", unit.unwrap_or_default()),
            kind,
            labels,
            help,
        });
    }
}

impl<'ast> Visit<'ast> for Metrics {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        if call.method == "register" {
            self.registered(call, false);
        } else if call.method == "register_with_unit" {
            self.registered(call, true);
        }
        visit::visit_expr_method_call(self, call);
    }

    /// A collector makes its gauges from tuples of name, help and value.
    fn visit_expr_tuple(&mut self, tuple: &'ast ExprTuple) {
        let elements: Vec<&Expr> = tuple.elems.iter().collect();
        if let [name, help, Expr::Path(_)] = elements.as_slice()
            && let (Some(name), Some(help)) = (literal(name), literal(help))
        {
            self.found.push(Metric {
                name,
                kind: "gauge",
                labels: Vec::new(),
                help,
            });
        }
        visit::visit_expr_tuple(self, tuple);
    }
}

/// The variants of each enum of a file that is written as a label's value as it stands.
fn label_values(file: &syn::File) -> BTreeMap<String, String> {
    let derived = |attributes: &[Attribute]| {
        attributes.iter().any(|attribute| {
            let list = attribute.meta.require_list();
            attribute.path().is_ident("derive")
                && list.is_ok_and(|list| list.tokens.to_string().contains("EncodeLabelValue"))
        })
    };
    file.items
        .iter()
        .filter_map(|item| match item {
            syn::Item::Enum(item) if derived(&item.attrs) => Some(item),
            _ => None,
        })
        .map(|item| {
            let variants: Vec<String> = item
                .variants
                .iter()
                .map(|variant| format!("`{}`", variant.ident))
                .collect();
            (item.ident.to_string(), variants.join(", "))
        })
        .collect()
}

/// `metrics.requests.clone()` or `requests.clone()`: the name.
fn field(expression: &Expr) -> Option<String> {
    match expression {
        Expr::MethodCall(call) => field(&call.receiver),
        Expr::Field(access) => match &access.member {
            syn::Member::Named(name) => Some(name.to_string()),
            syn::Member::Unnamed(_) => None,
        },
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}

/// Every identifier in a type.
fn idents(type_: &Type, names: &mut Vec<String>) {
    struct Idents<'a>(&'a mut Vec<String>);
    impl<'ast> Visit<'ast> for Idents<'_> {
        fn visit_ident(&mut self, ident: &'ast syn::Ident) {
            self.0.push(ident.to_string());
        }
    }
    Idents(names).visit_type(type_);
}

/// Reasons that stand as a text where an event is made.
#[derive(Default)]
pub(crate) struct EventReasons {
    pub(crate) found: Vec<String>,
}

impl<'ast> Visit<'ast> for EventReasons {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_expr_struct(&mut self, made: &'ast ExprStruct) {
        if made.path.segments.last().is_some_and(|last| last.ident == "Event") {
            let reason = made
                .fields
                .iter()
                .find(|field| matches!(&field.member, syn::Member::Named(name) if name == "reason"));
            self.found.extend(reason.and_then(|field| literal(&field.expr)));
        }
        visit::visit_expr_struct(self, made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(code: &str) -> Vec<(String, String)> {
        let file = syn::parse_file(code).unwrap();
        let mut visitor = Texts::new("part", "file.rs");
        visitor.visit_file(&file);
        visitor.found.into_iter().map(|text| (text.key, text.shown)).collect()
    }

    #[test]
    fn error_types_and_texts_made_in_place_are_found() {
        let found = texts(
            r#"
            enum E { #[error("at most {limit} of {0:?}: {{x}}")] Full { limit: u32 }, #[error(transparent)] Other(X), #[error("{0}")] Any(String) }
            fn f() { refuse(400, "the body must be empty", ""); Err(ConfigError::new(format!("{flag} is not a file"))) }
            #[cfg(test)] mod tests { fn g() { refuse("not of the product"); } }
            "#,
        );
        assert_eq!(
            found,
            [
                ("part/E::Full".to_owned(), "at most <limit> of …: {x}".to_owned()),
                (
                    "part/file.rs: the body must be empty".to_owned(),
                    "the body must be empty".to_owned()
                ),
                (
                    "part/file.rs: <flag> is not a file".to_owned(),
                    "<flag> is not a file".to_owned()
                ),
            ]
        );
    }

    #[test]
    fn metrics_have_the_name_kind_and_labels_that_are_exported() {
        let code = r#"
            #[derive(EncodeLabelValue)] enum Stage { Claim, Ready }
            struct Labels { #[doc = "`a` or `b`"] r#type: &'static str, stage: Stage }
            struct M { requests: Family<Labels, Counter>, durations: Histogram, open: Gauge<i64, A> }
            fn r(registry: &mut R) {
                registry.register("requests", "Requests", metrics.requests.clone());
                registry.register_with_unit("duration", "Time", Unit::Seconds, durations.clone());
                registry.register("open", "Open", metrics.open.clone());
                for x in [("sessions", "Sessions", sessions)] {}
            }"#;
        let file = syn::parse_file(code).unwrap();
        let mut visitor = Metrics::new(&file);
        visitor.visit_file(&file);
        let found: Vec<_> = visitor
            .found
            .iter()
            .map(|metric| {
                let label = |label: &Label| format!("{}={}", label.name, label.values);
                let labels: Vec<String> = metric.labels.iter().map(label).collect();
                (metric.name.as_str(), metric.kind, labels.join(" "))
            })
            .collect();
        assert_eq!(
            found,
            [
                (
                    "requests_total",
                    "counter",
                    "type=`a` or `b` stage=`Claim`, `Ready`".to_owned()
                ),
                ("duration_seconds", "histogram", String::new()),
                ("open", "gauge", String::new()),
                ("sessions", "gauge", String::new())
            ]
        );
    }
}
