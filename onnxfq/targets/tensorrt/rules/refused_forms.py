"""Rule about forms of operators in the table that the parser made (`runtime_forms`)."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfq.graph.normalize.node_sites import NodeSite
from onnxfq.graph.ops import STANDARD_DOMAINS
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.quantizer_reader import is_quantized
from onnxfq.targets.reading.runtime_forms import RuntimeForm, forms_by_operator
from onnxfq.targets.tensorrt.rules.operator_forms import find_refused

_SAID = "TensorRT's parser refuses"


def table_forms(reading: CheckContext) -> Iterator[Finding]:
    """Refuse forms of operators that the parser refused when the table was made."""
    by_op = forms_by_operator("tensorrt")
    for site in reading.sites:
        if site.node.domain not in STANDARD_DOMAINS or any(find_refused(site)):
            continue  # another rule names the remedy
        for form in by_op.get(site.op, ()):
            message = _describe(site, form)
            if message:
                yield make_finding("operator-form", "refused", site, message)
                break


def _describe(site: NodeSite, form: RuntimeForm) -> str:
    """Return the finding of `form` at `site`; empty if the node has another form."""
    for name, value in form.attributes.items():
        other = "export it with another value, or compute it by other operators"
        found = site.attrs.get(name) == value
        return f"{name} is {value!r}, which {_SAID}; {other}" if found else ""
    if form.output:
        asked = len(site.node.output) > form.output and site.node.output[form.output]
        return f"it gives output {form.output}, which {_SAID}; export it with fewer outputs" if asked else ""
    if form.missing:
        return "" if site.input(form.missing) else f"input {form.missing} is left out, which {_SAID}; give it"
    name = site.input(0)
    code = TensorProto.DataType.Value(form.dtype)
    if site.index.dtype(name) != code or site.index.is_constant(name) or is_quantized(site, name):
        return ""
    kind = form.dtype.lower()
    return f"it reads {kind} numbers, which {_SAID} for {site.op}; put a Cast in front of it"


RULES: tuple[Rule, ...] = (table_forms,)
