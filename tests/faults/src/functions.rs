//! Finds the functions of a file.

use std::ops::Range;

use syn::visit::{self, Visit};

/// A function with a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Function {
    /// `Type::method`, or the name alone outside of `impl`s and traits.
    pub(crate) name: String,
    /// The bytes between the braces.
    pub(crate) body: Range<usize>,
    /// The reason why the function can have no faults, if there is one.
    pub(crate) hindrance: Option<&'static str>,
}

/// Returns all functions of a file.
pub(crate) fn functions(source: &str) -> syn::Result<Vec<Function>> {
    let file = syn::parse_file(source)?;
    let mut finder = Finder { holder: None, found: Vec::new() };
    finder.visit_file(&file);
    Ok(finder.found)
}

struct Finder {
    /// The type or trait whose methods are visited.
    holder: Option<String>,
    found: Vec<Function>,
}

impl Finder {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let name = signature.ident.to_string();
        let name = self.holder.as_ref().map_or(name.clone(), |holder| format!("{holder}::{name}"));
        let hindrance = if signature.constness.is_some() {
            Some("is const")
        } else if matches!(&signature.output, syn::ReturnType::Type(_, returned) if is_opaque(returned)) {
            Some("returns an opaque type")
        } else {
            None
        };
        let braces = block.brace_token.span;
        let body = braces.open().byte_range().end..braces.close().byte_range().start;
        self.found.push(Function { name, body, hindrance });
    }

    /// Visits with another holder.
    fn within(&mut self, holder: Option<String>, visit: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.holder, holder);
        visit(self);
        self.holder = before;
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.within(name_of(&item.self_ty), |finder| visit::visit_item_impl(finder, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(Some(item.ident.to_string()), |finder| visit::visit_item_trait(finder, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        self.within(None, |finder| visit::visit_impl_item_fn(finder, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig, block);
        }
        self.within(None, |finder| visit::visit_trait_item_fn(finder, item));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.within(None, |finder| {
            finder.add(&item.sig, &item.block);
            visit::visit_item_fn(finder, item);
        });
    }
}

/// Returns the last name of a type's path.
fn name_of(of: &syn::Type) -> Option<String> {
    match of {
        syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        syn::Type::Reference(reference) => name_of(&reference.elem),
        _ => None,
    }
}

/// Returns whether `impl Trait` occurs in a type.
fn is_opaque(of: &syn::Type) -> bool {
    struct Search(bool);
    impl<'ast> Visit<'ast> for Search {
        fn visit_type_impl_trait(&mut self, _: &'ast syn::TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut search = Search(false);
    search.visit_type(of);
    search.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r##"
        // A comment with { a brace, and ä.
        fn free() -> &'static str { "a } in ü \" text" }
        impl<T: Copy> some::Holder<T> {
            const fn constant() -> u8 { 1 }
            fn opaque(&self) -> Option<impl Iterator<Item = u8> + '_> { None::<std::iter::Empty<u8>> }
            fn outer(&self) { fn nested() { r#"}"#; } nested() }
        }
        impl Clone for &Holder { fn clone(&self) -> Self { '}'; self } }
        trait Named { fn name(&self) -> u8 { 2 } fn other(&self); }
        mod inner { fn hidden() { /* } */ } }
    "##;

    #[test]
    fn functions_are_found_with_their_bodies() {
        let found = functions(SOURCE).expect("Rust");
        let seen: Vec<_> =
            found.iter().map(|function| (&*function.name, SOURCE[function.body.clone()].trim())).collect();
        let expected = [
            ("free", "\"a } in ü \\\" text\""),
            ("Holder::constant", "1"),
            ("Holder::opaque", "None::<std::iter::Empty<u8>>"),
            ("Holder::outer", "fn nested() { r#\"}\"#; } nested()"),
            ("nested", "r#\"}\"#;"),
            ("Holder::clone", "'}'; self"),
            ("Named::name", "2"),
            ("hidden", "/* } */"),
        ];
        assert_eq!(seen, expected);
        let hindered: Vec<_> = found.iter().filter(|function| function.hindrance.is_some()).collect();
        assert_eq!(hindered.len(), 2, "{hindered:?}");
    }

    #[test]
    fn bytes_are_those_of_this_file_when_others_were_read_before() {
        functions(SOURCE).expect("Rust");
        assert_eq!(functions("fn f() { 1 }").expect("Rust")[0].body, 8..11);
    }
}
