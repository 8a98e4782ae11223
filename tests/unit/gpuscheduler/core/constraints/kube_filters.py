"""The filters of kube-scheduler over API objects, each as plain as it can be: what plans are compared with."""

from gpuscheduler.core.constraints.resources import node_resources, pod_resources

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def accepts(pod, node, nodes, pods):
    """Whether kube-scheduler would put `pod` on `node`, with `pods` (which have `spec.nodeName`) on `nodes`."""
    return (
        node_selected(pod, node)
        and tolerated(pod, node)
        and has_resources(pod, node, pods)
        and has_ports(pod, node, pods)
        and has_affinity(pod, node, nodes, pods)
        and has_no_anti_affinity(pod, node, nodes, pods)
        and is_spread(pod, node, nodes, pods)
    )


def labels(thing):
    return thing["metadata"].get("labels", {})


def requirement(wanted, have):
    value = have.get(wanted["key"])
    match wanted["operator"]:
        case "In":
            return value in wanted["values"]
        case "NotIn":
            return value not in wanted["values"]
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(wanted["values"][0])
        case "Lt":
            return value is not None and int(value) < int(wanted["values"][0])


def selects(selector, have):
    if selector is None:
        return False
    pairs = selector.get("matchLabels", {}).items()
    return all(have.get(key) == value for key, value in pairs) and all(
        requirement(wanted, have) for wanted in selector.get("matchExpressions", [])
    )


def node_selected(pod, node):
    if any(labels(node).get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
        return False
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED)
    if required is None:
        return True
    for term in required["nodeSelectorTerms"]:
        if not term:
            continue
        fields = {"metadata.name": node["metadata"]["name"]}
        if all(requirement(wanted, labels(node)) for wanted in term.get("matchExpressions", [])) and all(
            requirement(wanted, fields) for wanted in term.get("matchFields", [])
        ):
            return True
    return False


def tolerates(pod, taint):
    for toleration in pod["spec"].get("tolerations", []):
        if toleration.get("effect", taint["effect"]) != taint["effect"]:
            continue
        if toleration.get("key", taint["key"]) != taint["key"]:
            continue
        if toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""):
            return True
    return False


def tolerated(pod, node):
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    taints = [taint for taint in node["spec"].get("taints", []) if taint["effect"] != "PreferNoSchedule"]
    if node["spec"].get("unschedulable"):
        taints.append(cordon)
    return all(tolerates(pod, taint) for taint in taints)


def on(node, pods):
    return [pod for pod in pods if pod["spec"].get("nodeName") == node["metadata"]["name"]]


def has_resources(pod, node, pods):
    there = node_resources(node["status"]["allocatable"])
    wanted = pod_resources(pod["spec"], {})
    total = wanted
    for other in on(node, pods):
        total += pod_resources(other["spec"], {})
    for name, units in [("cpu", wanted.cpu), ("memory", wanted.memory), ("pods", 1)]:
        if units and getattr(total, name) > getattr(there, name):
            return False
    have, all_wanted = dict(there.others), dict(total.others)
    return all(all_wanted[name] <= have.get(name, 0) for name, _ in wanted.others)


def ports(pod):
    return [
        (port["hostPort"], port.get("protocol", "TCP"), port.get("hostIP", "0.0.0.0"))
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
        if port.get("hostPort")
    ]


def has_ports(pod, node, pods):
    taken = [port for other in on(node, pods) for port in ports(other)]
    for port, protocol, address in ports(pod):
        for other_port, other_protocol, other_address in taken:
            is_same = (port, protocol) == (other_port, other_protocol)
            if is_same and ("0.0.0.0" in (address, other_address) or address == other_address):
                return False
    return True


def term_matches(term, owner, pod):
    named = term.get("namespaces", [])
    selector = term.get("namespaceSelector")
    if not named and selector is None:
        named = [owner["metadata"]["namespace"]]
    namespace = pod["metadata"]["namespace"]
    is_named = namespace in named or selects(selector, {"kubernetes.io/metadata.name": namespace})
    return is_named and selects(term.get("labelSelector"), labels(pod))


def terms(pod, kind):
    return pod["spec"].get("affinity", {}).get(kind, {}).get(REQUIRED, [])


def node_of(pod, nodes):
    return next(node for node in nodes if node["metadata"]["name"] == pod["spec"]["nodeName"])


def in_domain(term, node, other):
    key = term["topologyKey"]
    return key in labels(node) and labels(node)[key] == labels(other).get(key)


def has_affinity(pod, node, nodes, pods):
    wanted = terms(pod, "podAffinity")
    if any(term["topologyKey"] not in labels(node) for term in wanted):
        return False
    matching = [other for other in pods if all(term_matches(term, pod, other) for term in wanted)]
    if all(any(in_domain(term, node, node_of(other, nodes)) for other in matching) for term in wanted):
        return True
    counted = [other for other in matching for term in wanted if term["topologyKey"] in labels(node_of(other, nodes))]
    return not counted and all(term_matches(term, pod, pod) for term in wanted)


def has_no_anti_affinity(pod, node, nodes, pods):
    for other in pods:
        there = node_of(other, nodes)
        for term in terms(pod, "podAntiAffinity"):
            if in_domain(term, node, there) and term_matches(term, pod, other):
                return False
        for term in terms(other, "podAntiAffinity"):
            if in_domain(term, there, node) and term_matches(term, other, pod):
                return False
    return True


def is_spread(pod, node, nodes, pods):
    constraints = [
        constraint
        for constraint in pod["spec"].get("topologySpreadConstraints", [])
        if constraint["whenUnsatisfiable"] == "DoNotSchedule"
    ]
    for constraint in constraints:
        key = constraint["topologyKey"]
        if key not in labels(node):
            return False
        extra = {key: labels(pod)[key] for key in constraint.get("matchLabelKeys", []) if key in labels(pod)}
        selector = constraint.get("labelSelector")

        def matches(have, selector=selector, extra=extra):
            return selects(selector, have) and all(have.get(key) == value for key, value in extra.items())

        is_empty = selector == {} and not extra
        counts = {}
        for other in nodes:
            if any(one["topologyKey"] not in labels(other) for one in constraints):
                continue
            if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and not node_selected(pod, other):
                continue
            if constraint.get("nodeTaintsPolicy") == "Honor" and not tolerated(
                pod, {**other, "spec": {"taints": other["spec"].get("taints", [])}}
            ):
                continue
            value = labels(other)[key]
            counted = [
                one
                for one in on(other, pods)
                if one["metadata"]["namespace"] == pod["metadata"]["namespace"]
                and "deletionTimestamp" not in one["metadata"]
                and matches(labels(one))
                and not is_empty
            ]
            counts[value] = counts.get(value, 0) + len(counted)
        fewest = min(counts.values(), default=0)
        if len(counts) < constraint.get("minDomains", 1):
            fewest = 0
        skew = counts.get(labels(node)[key], 0) + matches(labels(pod)) - fewest
        if skew > constraint["maxSkew"]:
            return False
    return True
