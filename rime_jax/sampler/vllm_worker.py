"""What rime_jax adds to each worker process of a vLLM server: a complete reload of the weights.

Runs in vLLM's environment, which has no jax: `--worker-extension-cls
rime_jax.sampler.vllm_worker.WorkerExtension` (launch/vllm_server.sh), called through
`/collective_rpc`.
"""


class WorkerExtension:
    """Becomes a base class of vLLM's worker."""

    def load_rime_weights(self, directory: str) -> None:
        """Replaces the model's weights by those of a model directory, in place.

        On a CPU vLLM keeps a repacked copy of each matrix. Its own `reload_weights` does not renew
        the copy of a head that is tied to the embeddings: the server then answers 200 and goes on
        with the old head.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.platforms import current_platform

        self.reload_weights(weights_path=directory)
        if current_platform.is_cpu():
            for layer in self.get_model().modules():
                if isinstance(layer, ParallelLMHead):
                    layer.quant_method.process_weights_after_loading(layer)
