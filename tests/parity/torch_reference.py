"""Random models of transformers, their logits and gradients in our form, and the comparison."""

import jax
import numpy as np
import torch

LOGIT_TOLERANCE = 2e-4
GRADIENT_TOLERANCE = 1e-3


def random_model(model_class, config, seed):
    """A float32 model whose every parameter has moved from its initial value, norms too.

    Matrices are small: in a wilder model rounding alone moves logits by more than the tolerance.
    """
    torch.manual_seed(seed)
    config._attn_implementation, config.use_cache = "eager", False
    model = model_class(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            narrow = p.ndim == 1 or "conv1d" in name or "embed_tokens" in name
            scale = 0.3 if narrow else 0.5 * p.shape[-1] ** -0.5
            p.add_(torch.randn_like(p) * scale)
    return model


def our_tree(policy, hf_names, tensors):
    """Tensors under Hugging Face's names as a tree like the policy's parameters."""

    def ours(array, change, features):
        if change == "depthwise":
            array = array[:, 0]
        array = array if change == "none" else array.T
        return array if features is None else array[..., features]

    def leaf(path, _):
        name = "/".join(part.key for part in path)
        theirs, change = hf_names[name]
        features = None
        if name in ("linear_attention/qkv", "linear_attention/conv"):
            features = features_by_head(policy.config)
        if "{}" not in theirs:
            return ours(tensors[theirs], change, features)
        return np.stack([ours(tensors[theirs.format(i)], change, features)
                         for i in policy.hf_layers(name)])

    return jax.tree_util.tree_map_with_path(leaf, policy.shapes())


def features_by_head(c):
    """Of a DeltaNet layer's queries, keys and values in turn, the numbers in our order."""
    J, M = c.linear_num_key_heads, c.linear_key_head_dim
    values = c.linear_num_value_heads // J * c.linear_value_head_dim
    return [i for j in range(J) for start, n in (
        (j * M, M), ((J + j) * M, M), (2 * J * M + j * values, values))
        for i in range(start, start + n)]


def assert_same_function(policy, hf_names, model, seed, tokens=130):
    """Logits, and gradients of a weighted next-token loss, of two random sequences.

    An error of a logit counts relative to their standard deviation, one of a gradient to the
    largest entry of its tensor.
    """
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, policy.vocab_size, (2, tokens)).astype(np.int32)
    weights = rng.uniform(size=(2, tokens - 1)).astype(np.float32)
    theirs = model(torch.from_numpy(ids).long()).logits
    picked = torch.log_softmax(theirs[:, :-1], -1).gather(
        2, torch.from_numpy(ids[:, 1:, None]).long())[..., 0]
    (picked * torch.from_numpy(weights)).sum().backward()
    # A tied head appears once among the parameters, with the gradients of both uses.
    params = {name: p.detach().numpy() for name, p in model.named_parameters()}
    gradients = {name: p.grad.numpy() for name, p in model.named_parameters()}

    def loss(params):
        positions = np.broadcast_to(np.arange(tokens, dtype=np.int32)[None], ids.shape)
        hidden = policy.forward(params, ids, positions, np.ones_like(ids))
        logits = policy.logits(params, hidden)
        log_p = jax.nn.log_softmax(logits[:, :-1])
        return (np.eye(policy.vocab_size, dtype=np.float32)[ids[:, 1:]] * log_p
                * weights[..., None]).sum(), logits

    (_, logits), ours = jax.jit(jax.value_and_grad(loss, has_aux=True))(
        our_tree(policy, hf_names, params))
    theirs = theirs.detach().numpy()
    assert np.std(theirs) > 0.3
    logit_error = np.abs(logits - theirs).max() / np.std(theirs)

    def error(a, b):
        assert np.abs(b).max() > 0
        return np.abs(a - b).max() / np.abs(b).max()

    errors = jax.tree.map(error, ours, our_tree(policy, hf_names, gradients))
    gradient_error = max(jax.tree.leaves(errors))
    print(f"logits {logit_error:.1e}, gradients {gradient_error:.1e}")
    assert logit_error < LOGIT_TOLERANCE
    assert gradient_error < GRADIENT_TOLERANCE, errors
